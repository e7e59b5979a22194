"""The bill of materials lists what the dispatcher runs with, as the lock pins it for the image."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from release import sbom

CHECKOUT = Path(__file__).parents[2]
LOCK = (CHECKOUT / "requirements.lock").read_text()
PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
MADE = datetime(2026, 1, 1, tzinfo=UTC)
TWO_VERSIONS = """\
# A comment.
some.package==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via other
some.package==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
other==3 \\
    --hash=sha256:dd
"""


def test_lock_is_read_for_the_python_of_the_image() -> None:
    assert sbom.read_lock(TWO_VERSIONS) == {
        "some-package": sbom.Pinned("1.0", ("aa", "bb")),
        "other": sbom.Pinned("3", ("dd",)),
    }


def test_closure_has_packages_that_packages_and_extras_require_and_none_of_another_system() -> None:
    found = sbom.closure(["psycopg[binary]>=3", "colorama; sys_platform == 'win32'"])

    assert found["psycopg"] == ["psycopg-binary", "typing-extensions"]
    assert "colorama" not in found
    assert found.keys() >= {"psycopg", "psycopg-binary", "typing-extensions"}


def test_bill_lists_what_the_project_requires_and_no_tool() -> None:
    bill = json.loads(sbom.render(PROJECT, LOCK, MADE))

    components = {each["name"]: each for each in bill["components"]}
    pinned = sbom.read_lock(LOCK)
    assert {name: each["version"] for name, each in components.items()} == {
        name: pinned[name].version for name in components
    }
    assert components.keys() >= {name for name, _ in sbom.parsed(PROJECT["dependencies"])}
    assert components.keys() & {"pytest", "ruff", "hatchling", "cyclonedx-python-lib"} == set()
    assert {
        name for name, each in components.items() if not (each.get("licenses") and each["hashes"])
    } == set()
    assert bill["metadata"]["component"]["name"] == PROJECT["name"]


def test_bill_is_the_same_for_the_same_lock_and_time() -> None:
    once = sbom.render(PROJECT, LOCK, MADE)

    assert sbom.render(PROJECT, LOCK, MADE) == once
    assert sbom.render(PROJECT, LOCK + "\n", MADE) != once
