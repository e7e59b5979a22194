"""Chromium without a window. Where there is none its tests are skipped.

The programs are Debian's, at the paths that its packages have. Nothing is looked for elsewhere, or downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.expected_conditions import url_contains
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM: Final = Path("/usr/bin/chromium")
DRIVER: Final = Path("/usr/bin/chromedriver")
WIDTH: Final = 1280
HEIGHT: Final = 800
ROOT: Final = 0
"""The user whose Chromium cannot put a sandbox around its processes."""
MOST_SECONDS: Final = 60
"""For a page or a script, beside other tests."""

OpenBrowser = Callable[[], Chrome]


@pytest.fixture(scope="module")
def open_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBrowser]:
    """Start one more browser, which knows nothing of the others; all end with the tests of the file."""
    skip_without(CHROMIUM, DRIVER)
    with ExitStack() as browsers:

        def start() -> Chrome:
            browser = _start(tmp_path_factory.mktemp("browser"))
            browsers.callback(browser.quit)
            return browser

        yield start


@pytest.fixture(scope="module")
def browser(open_browser: OpenBrowser) -> Chrome:
    """The browser of the tests of a file."""
    return open_browser()


def enter(browser: Chrome, address: str) -> str:
    """Open the printed address; the address of the queue, which the page behind it leads to."""
    browser.get(address)
    WebDriverWait(browser, MOST_SECONDS).until(url_contains("/queue"))
    return browser.current_url


def skip_without(*files: Path) -> None:
    """Skips the test if one is not there: `make test` needs no browser, and `make test-all` installs it."""
    missing = [str(each) for each in files if not each.exists()]
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)}: `make web-browser` installs what is needed")


def _start(folder: Path) -> Chrome:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={WIDTH},{HEIGHT}",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",  # /dev/shm of a container is small
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        *(["--no-sandbox"] if os.geteuid() == ROOT else []),
    ):
        options.add_argument(argument)
    service = ChromeService(executable_path=str(DRIVER), log_output=str(folder / "driver.log"))
    browser = Chrome(options=options, service=service)
    browser.set_script_timeout(MOST_SECONDS)
    return browser
