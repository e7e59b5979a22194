"""Each page in a real browser: it fits, axe-core finds no fault, and a tenant's words are only words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dispatcher.store.readers.reports import Description
from dispatcher.web.node_reading import SeenNodes
from dispatcher.web.site import Sources
from tests.browser.looks import LOOKS, Look, complaints, faults, look_at, overflow, screenshot
from tests.browser.scenes import LONGEST_NAME, MARKUP, ended, hostile, working_day
from tests.browser.served import served
from tests.fixtures_browser import OpenBrowser, enter
from tests.unit.cli.people.test_running import node_report
from tests.unit.web.test_loopback import Remembered, Told, ToldNodes, ToldQueues, ToldSnapshot

PAGES: Final = {
    "queue": "queue",
    "appwrapper": "appwrapper/nlp/pretrain-7b",
    "after": "appwrapper/nlp/pretrain-7b?after=0",
    "what-if": "what-if?pods=3&gpus=8",
    "queues": "queues",
    "map": "map",
    "ended": "appwrapper/nlp/tokenise",
    "history": "history?since=30d",
    "nothing-found": "queue?q=nobody",
    "missing": "appwrapper/vision/pretrain-7b",
    "refused": "../?token=guess",
}
"""Where each page is, seen from the queue."""
IN_DOCS: Final = ("appwrapper-light", "ended-light")
"""Screenshots that docs/web.md shows; no others are written."""
SCREENSHOTS: Final = os.environ.get("DISPATCHER_TEST_SCREENSHOTS", "")
"""The folder that screenshots are written to, for docs/web.md; none are written without it."""
MOST_TABS: Final = 50
NOT_THERE: Final = ("missing", "refused")
"""Pages of answers that the console lists, because their status is no success."""
FAILED: Final = "The page cannot be shown"

ACTIVE: Final = "return document.activeElement"
OUTLINE: Final = "return getComputedStyle(document.activeElement).outlineStyle"


class PastDay(Remembered):
    """A database that knows one AppWrapper, which was evicted once."""

    def story(self, namespace: str, name: str, uid: str = "") -> Description | None:
        return ended() if (namespace, name, uid) == ("nlp", "tokenise", "") else None


@pytest.fixture(scope="module")
def told() -> Told:
    """What the pages show; a test may change it."""
    return Told(working_day())


@pytest.fixture(scope="module")
def address(told: Told) -> Iterator[str]:
    """The printed address."""
    nodes = ToldNodes(SeenNodes(told.seen.at, tuple(node_report().nodes)))
    with served(Sources(told, nodes, ToldQueues(), PastDay(), ToldSnapshot())) as address:
        yield address


@pytest.fixture(scope="module")
def queue(browser: Chrome, address: str) -> str:
    """The address of the queue, in which the browser was let in."""
    return enter(browser, address)


@pytest.mark.parametrize("look", [pytest.param(look, id=look.name) for look in LOOKS])
@pytest.mark.parametrize("page", PAGES)
def test_page_fits_and_has_no_fault(browser: Chrome, queue: str, page: str, look: Look) -> None:
    look_at(browser, look)
    browser.get(f"{queue.removesuffix('queue')}{PAGES[page]}")
    if SCREENSHOTS and (name := f"{page}-{look.name}") in IN_DOCS:
        screenshot(browser, Path(SCREENSHOTS, f"{name}.png"))
    assert browser.find_element(By.TAG_NAME, "h1").text != FAILED
    assert overflow(browser) == 0
    assert faults(browser) == []


def test_pages_load_nothing_that_their_policy_forbids(browser: Chrome, queue: str) -> None:
    complaints(browser)
    for path in (PAGES[each] for each in PAGES if each not in NOT_THERE):
        browser.get(f"{queue.removesuffix('queue')}{path}")
    assert complaints(browser) == []


def test_second_browser_is_refused_and_told_what_to_do(
    browser: Chrome, queue: str, address: str, open_browser: OpenBrowser
) -> None:
    other = open_browser()
    other.get(address)
    assert other.find_element(By.TAG_NAME, "h1").text == "This address was used already"
    assert "start it again" in other.find_element(By.TAG_NAME, "p").text
    other.get(queue)
    assert other.find_element(By.TAG_NAME, "h1").text == "This browser has not opened the printed address"
    browser.get(queue)
    assert browser.find_element(By.TAG_NAME, "h1").text == "Queue"


def test_search_and_rows_are_reached_by_keyboard_with_a_visible_focus(browser: Chrome, queue: str) -> None:
    look_at(browser, LOOKS[0])
    browser.get(queue)
    reached = []
    for _ in range(MOST_TABS):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        element = browser.execute_script(ACTIVE)
        if element.tag_name == "body":
            break
        assert browser.execute_script(OUTLINE) != "none", element.get_attribute("outerHTML")
        reached.append(element.get_attribute("id") or element.text)
    rows = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "td a")]
    assert len(rows) == len(working_day().appwrappers)
    assert [each for each in reached if each == "q" or each in rows] == ["q", *rows]


@pytest.mark.parametrize("look", [pytest.param(look, id=look.name) for look in LOOKS])
def test_words_of_a_hostile_tenant_neither_run_nor_widen_a_page(
    browser: Chrome, queue: str, told: Told, look: Look
) -> None:
    root = queue.removesuffix("queue")
    look_at(browser, look)
    told.seen = hostile()
    try:
        for path in (
            "queue",
            f"queue?q={quote(MARKUP)}",
            "appwrapper/nlp/evil",
            f"appwrapper/nlp/{'n' * LONGEST_NAME}",
        ):
            complaints(browser)  # axe-core may have left some on the page before
            browser.get(f"{root}{path}")
            assert browser.title != "owned"
            assert browser.find_elements(By.CSS_SELECTOR, "script, img") == []
            assert overflow(browser) == 0
            assert complaints(browser) == []
            assert faults(browser) == []
    finally:
        told.seen = working_day()
