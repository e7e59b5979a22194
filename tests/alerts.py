"""The alerts of manifests/components/monitoring, as tests read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

COMPONENT: Final = Path(__file__).parents[1] / "manifests" / "components" / "monitoring"


def read_rules() -> dict[str, dict[str, Any]]:
    """The alerts of rules.yaml by name."""
    (group,) = yaml.safe_load((COMPONENT / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    return {each["alert"]: each for each in group["rules"]}
