"""`kubectl aw web` on a real hub, in a real browser: a user opens the address, searches, and reads why a gang waits."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import url_contains
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.looks import complaints
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.test_web import LISTS, page
from tests.cluster.world import World
from tests.fixtures_browser import browser, enter, open_browser

__all__ = ["browser", "open_browser"]

pytestmark = pytest.mark.browser


async def test_user_finds_a_gang_and_reads_why_it_waits(world: World, browser: Chrome) -> None:
    await world.start_dispatcher()
    await world.create_until("Backoff", appwrapper("vast", item(job("vast", 2, cpu="60"))))
    await world.create_until("Backoff", appwrapper("other", item(job("other", 2, cpu="60"))))
    reader = await asyncio.to_thread(
        world.plane.service_account_kubeconfig, world.namespace, "reader", [LISTS]
    )
    found = await world.get("AppWrapper", "vast")
    assert found is not None
    async with page(reader) as address:
        await asyncio.to_thread(_find_and_read, browser, address, f"{world.namespace}/vast", found["status"])


SECONDS: Final = 30
"""How long the browser may take for a page."""


def _find_and_read(browser: Chrome, address: str, key: str, status: dict[str, dict[str, str]]) -> None:
    enter(browser, address)
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("Queue")
    browser.find_element(By.ID, "q").send_keys("vast", Keys.ENTER)
    WebDriverWait(browser, SECONDS).until(url_contains("q=vast"))
    assert [each.text for each in browser.find_elements(By.CSS_SELECTOR, "td a")] == [key]
    searched = browser.current_url
    browser.find_element(By.LINK_TEXT, key).click()
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith(key)
    why = browser.find_element(By.TAG_NAME, "main").text
    waiting = status["waiting"]
    assert waiting["reason"] in why
    assert waiting["message"].split(";")[0] in why
    browser.back()
    assert browser.current_url == searched
    assert complaints(browser) == []
