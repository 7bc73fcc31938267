"""`pi-prefix-cache demo`: what the proxy changes, shown with a tiny model on this machine."""

import sys
from collections.abc import Sequence


def demo(argv: Sequence[str]) -> int:
    """Run the comparison; returns the exit code."""
    if argv:
        sys.stderr.write("pi-prefix-cache demo takes no flags\n")
        return 2
    try:
        from proxy.demo.compare import main  # noqa: PLC0415  (needs the `demo` extra)
    except ImportError as error:
        sys.stderr.write(f"pip install '.[demo]' first, from the clone: pi-prefix-cache demo needs it ({error})\n")
        return 1
    return main()
