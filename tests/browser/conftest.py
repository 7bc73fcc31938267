"""A real Chromium, where there is one; where there is none these tests are left out, and the run's last lines say so.

CHROMIUM=/path/to/chromium chooses it.
"""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

# Without most of these it tries to talk to its maker's hosts.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HERE = Path(__file__).parent
LEFT_OUT = pytest.StashKey[int]()


def find_chromium() -> str | None:
    """Its path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs Chromium (added by itself to all in tests/browser)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.browser)
    if find_chromium() is None:
        config.stash[LEFT_OUT] = len(ours)
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash.get(LEFT_OUT, 0):
        words = f"{left_out} browser tests LEFT OUT: no Chromium (apt-get install chromium, or CHROMIUM=/path)"
        terminalreporter.write_line(words, yellow=True, bold=True)


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    """A browser that ends with the test."""
    async with async_playwright() as player:
        browser = await player.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield browser
        await browser.close()
