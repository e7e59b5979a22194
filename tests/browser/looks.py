"""What a browser shows of a page: in which colours and width, whether it fits, and what axe-core finds wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from selenium.webdriver import Chrome

from tests.fixtures_browser import HEIGHT, WIDTH, skip_without

Json = dict[str, Any]

CHECKOUT: Final = Path(__file__).parents[2]
AXE: Final = CHECKOUT / ".dev" / "axe" / "axe_playwright_python" / "axe.min.js"
NARROW: Final = 320
"""CSS pixels that a page must do with (WCAG 2.2, 1.4.10): a phone, or a zoom to 400 %."""


class Look(Struct, frozen=True):
    """How a page is looked at."""

    name: str
    width: int = WIDTH
    scheme: str = "light"


LOOKS: Final = (Look("light"), Look("dark", scheme="dark"), Look("narrow", width=NARROW))


def look_at(browser: Chrome, look: Look) -> None:
    """Give the browser that width, and that wish for colours."""
    metrics = {"width": look.width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": look.scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def faults(browser: Chrome) -> list[str]:
    """What axe-core finds wrong in the page, each with its rule and the place."""
    skip_without(AXE)
    browser.execute_script(AXE.read_text())  # a driver's script is not bound by the policy of the page
    found = browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run().then(found => done(found.violations), error => done(String(error)))"
    )
    assert isinstance(found, list), found
    return [
        f"{each['id']}: {each['help']}: {node['html']}: {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


def overflow(browser: Chrome) -> int:
    """CSS pixels that the page is wider than the window."""
    return int(
        browser.execute_script(
            "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
        )
    )


def complaints(browser: Chrome) -> list[str]:
    """What the console got since the last time, such as what the policy of the page forbade."""
    entries = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries]


def screenshot(browser: Chrome, path: Path) -> None:
    """Write the page as it is looked at to a PNG, if screenshots are asked for."""
    path.parent.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(path))
