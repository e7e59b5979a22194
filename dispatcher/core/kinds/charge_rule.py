"""The rule for declared demand; commands that read a snapshot need it without the parser of AppWrappers."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """How a declaration is charged where the demand can be derived from the template."""

    LARGER = "larger"
    """The larger of declared and derived, of each resource; a kind without pods is charged nothing."""
    TRUSTED = "trusted"
    """The declared demand, whatever the template says, as in MCAD."""
