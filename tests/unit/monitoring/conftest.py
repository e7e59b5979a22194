"""The folder of scrape, alerts and dashboard, and promtool if it was built."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from testbed import monitoring

CHECKOUT: Final = Path(__file__).parents[3]
COMPONENT: Final = CHECKOUT / "manifests" / "components" / "monitoring"

Json = dict[str, Any]


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program that checks and tests rules; `make test-all` builds it."""
    binaries = monitoring.find()
    if binaries is None:
        pytest.skip(monitoring.PROVIDE)
    return binaries.promtool


@pytest.fixture(scope="session")
def rules() -> dict[str, Json]:
    """The alerts by name."""
    return read_rules()


def read_rules() -> dict[str, Json]:
    """The alerts of rules.yaml by name."""
    (group,) = yaml.safe_load((COMPONENT / "rules.yaml").read_text())["groups"]
    return {each["alert"]: each for each in group["rules"]}
