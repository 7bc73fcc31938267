"""What the tests of the admin listener are given."""

from tests.commands.conftest import terminal

__all__ = ["terminal"]
