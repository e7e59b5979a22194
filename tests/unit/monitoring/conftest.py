"""The alerts, and promtool if it was built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed import monitoring
from tests.alerts import read_rules


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program that checks and tests rules; `make test-all` builds it."""
    binaries = monitoring.find()
    if binaries is None:
        pytest.skip(monitoring.PROVIDE)
    return binaries.promtool


@pytest.fixture(scope="session")
def rules() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    return read_rules()
