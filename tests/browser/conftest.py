"""The browser of the tests of this folder."""

from __future__ import annotations

from tests.fixtures_browser import browser, open_browser

__all__ = ["browser", "open_browser"]
