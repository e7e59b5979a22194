"""docs/notify.md and the example agree with the code; the command checks a declaration without a database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dispatcher.__main__ import dispatcher_program
from dispatcher.api.document import Entry
from dispatcher.api.notifications import GROUPS, WAITING, Occasion
from dispatcher.errors import SettingsError
from dispatcher.notify.metrics import NotifierMetrics
from dispatcher.notify.targets import read_targets

CHECKOUT = Path(__file__).parents[3]
PAGE = (CHECKOUT / "docs" / "notify.md").read_text(encoding="utf-8")
EXAMPLE = CHECKOUT / "examples" / "notify" / "targets.yaml"


def test_page_has_every_event() -> None:
    rows = re.findall(r"^\| `(\w+)(?::2h)?` \|", PAGE.split("## Declare targets")[0], re.MULTILINE)
    assert set(rows) == {*Occasion, *GROUPS, WAITING}


def test_page_has_every_metric_with_its_type_and_labels() -> None:
    rows = re.findall(r"^\| `(dispatcher_notify_\w+)` \| (\w+) \|([^|]*)\|", PAGE, re.MULTILINE)
    page = {name: (type_, set(re.findall(r"`(\w+)`", labels))) for name, type_, labels in rows}
    metrics = NotifierMetrics()
    collectors = [each for each in vars(metrics).values() if hasattr(each, "_labelnames")]
    code = {
        f"{each._name}_total" if each._type == "counter" else each._name: (  # noqa: SLF001  # it has no other reader
            each._type,  # noqa: SLF001
            set(each._labelnames),  # noqa: SLF001
        )
        for each in collectors
    }
    assert page == code


def test_example_is_a_declaration_with_and_without_its_comments() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert [each.name for each in read_targets(Entry(yaml.safe_load(text), ""))] == ["hook"]
    whole = re.sub(r"^#(?=- |  )", "", text, flags=re.MULTILINE)
    names = [each.name for each in read_targets(Entry(yaml.safe_load(whole), ""))]
    assert names == ["hook", "team-slack", "team-teams", "operators"]


def written(folder: Path, text: str) -> str:
    file = folder / "targets.yaml"
    file.write_text(text)
    return str(file)


def test_check_lists_the_targets_without_their_addresses(tmp_path: Path) -> None:
    file = written(tmp_path, EXAMPLE.read_text(encoding="utf-8"))
    result = CliRunner().invoke(dispatcher_program, ["notify", "--targets", file, "--check"])
    assert (result.exit_code, result.output) == (0, "hook: webhook, signed; open to *\n")


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        (
            "targets: [{name: A}]",
            ["--check"],
            r'the declaration of targets: targets\[0\].name: "A" is no name',
        ),
        ("targets: []", ["--try", "mail"], "the declaration has no target 'mail'; it has none"),
        (
            "targets: [{name: a, apprise: 'nothing://T0KEN'}]",
            ["--check"],
            "target a: apprise cannot read its address",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, arguments: list[str], problem: str) -> None:
    file = written(tmp_path, text)
    result = CliRunner().invoke(dispatcher_program, ["notify", "--targets", file, *arguments])
    assert isinstance(result.exception, SettingsError)
    assert re.search(problem, str(result.exception))
    assert "T0KEN" not in str(result.exception)
