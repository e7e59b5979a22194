"""`dispatcher simulate`: the answers on small traces, and how wrong input is refused.

The golden documents are in `tests/golden/simulations`: `dispatcher simulate NAME.yaml -o json` writes each.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from dispatcher.cli.files.simulate import EXAMPLE, run_all
from dispatcher.core.simulation.run_file import read_run
from dispatcher.core.simulation.simulation import Simulation
from dispatcher.core.simulation.traces.spec import KEYS, POLICY, TRACE, Format
from tests.commands import Ran, Run, runner

GOLDEN = Path(__file__).parents[3] / "golden" / "simulations"
NAMES = sorted(each.stem for each in GOLDEN.glob("*.yaml"))
PAGE = (Path(__file__).parents[4] / "docs" / "simulation.md").read_text(encoding="utf-8")
EXAMPLE_TEXT = "\n".join(EXAMPLE)


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher simulate …`."""
    return runner(monkeypatch, capsys, "simulate")


@pytest.mark.parametrize("name", NAMES)
async def test_answer_is_that_of_the_golden_document(simulate: Run, name: str) -> None:
    ran = await simulate(str(GOLDEN / f"{name}.yaml"), "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


async def test_runs_of_several_files_are_side_by_side(simulate: Run) -> None:
    ran = await simulate("-f", str(GOLDEN / "hub.yaml"), "-f", str(GOLDEN / "separate.yaml"))
    assert ran == Ran(0, (GOLDEN / "hub-separate.txt").read_text(encoding="utf-8"))


async def test_example_of_the_help_runs(simulate: Run) -> None:
    ran = await simulate("-", "-o", "yaml", stdin=EXAMPLE_TEXT)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("runs:\n- name: fifo\n  gangs: 3\n  left: 0\n  wait:\n    mean: 2550.0\n")


async def test_answer_on_the_page_is_that_of_its_files(simulate: Run, tmp_path: Path) -> None:
    written, answer = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[0] for kind in ("yaml", "text"))
    (tmp_path / "fifo.yaml").write_text(written)
    other = written.replace("fifo, queueing: StrictFIFO", "best-effort")
    (tmp_path / "best-effort.yaml").write_text(other)
    assert other != written
    ran = await simulate(str(tmp_path / "fifo.yaml"), str(tmp_path / "best-effort.yaml"))
    assert ran == Ran(0, answer)


def test_page_names_every_key() -> None:
    for key in (*TRACE, *POLICY):
        assert re.search(rf"^\| .*`{key}`.* \|", PAGE, re.MULTILINE), key


def test_page_names_the_formats_of_every_key_of_a_trace() -> None:
    told: dict[str, set[str]] = {each: set() for each in KEYS}
    for keys, formats in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE):
        for format_ in re.findall(r"`(\w+)`", formats):
            told[Format(format_)].update(re.findall(r"`(\w+)`", keys))
    assert told == {format_: set(keys) for format_, keys in KEYS.items()}


async def test_changes_of_the_command_line_count(simulate: Run) -> None:
    ran = await simulate("-", "-o", "json", "--if", "nodes+2:like=node-0", stdin=EXAMPLE_TEXT)
    assert json.loads(ran.out)["runs"][0]["wait"]["mean"] == 0.0
    ran = await simulate("-", "-o", "json", "--scale-arrivals", "2", stdin=EXAMPLE_TEXT)
    assert json.loads(ran.out)["runs"][0]["wait"]["p50"] == 3570.0


async def test_quota_of_the_command_line_counts(simulate: Run) -> None:
    """The queue that borrows has quota of its own then, so nothing is preempted."""
    file, quota = str(GOLDEN / "quota.yaml"), "speech:nvidia.com/gpu=8"
    before = json.loads((await simulate(file, "-o", "json")).out)
    after = json.loads((await simulate(file, "--quota", quota, "-o", "json")).out)
    assert [each["runs"][0]["preemptions"] for each in (before, after)] == [1, 0]


async def test_gangs_of_a_cluster_that_is_taken_away_go_to_the_others_if_they_may(simulate: Run) -> None:
    hub = json.loads((await simulate(str(GOLDEN / "hub.yaml"), "--without-cluster", "b", "-o", "json")).out)
    assert [(each["gangs"], each["left"]) for each in hub["runs"]] == [(5, 0)]


@pytest.mark.parametrize(
    ("clusters", "place"),
    [
        pytest.param("clusters: {vision: a, speech: b}", "separate.yaml: trace.clusters.speech", id="mapped"),
        pytest.param("", "philly.csv: line 5", id="named-by-the-trace"),
    ],
)
async def test_gangs_of_a_cluster_that_is_taken_away_are_refused_if_they_may_go_to_no_other(
    simulate: Run, tmp_path: Path, clusters: str, place: str
) -> None:
    written = (GOLDEN / "separate.yaml").read_text(encoding="utf-8")
    rows = (GOLDEN / "philly.csv").read_text(encoding="utf-8")
    if not clusters:
        written = written.replace("  clusters: {vision: a, speech: b}\n", "")
        rows = rows.replace("vision", "a").replace("speech", "b").replace("elsewhere", "a")
    (tmp_path / "separate.yaml").write_text(written)
    (tmp_path / "philly.csv").write_text(rows)
    ran = await simulate(str(tmp_path / "separate.yaml"), "--without-cluster", "b")
    problem = 'cluster "b" is taken away by --without-cluster, and its jobs may go to no other'
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"dispatcher: {tmp_path}/{place}: {problem}: set policy.cluster to any\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--if", "nodes-1"], "'nodes-1' is no change: write [CLUSTER/]nodes+COUNT"),
        (["--without-cluster", "west"], "there is no cluster 'west': the clusters are east"),
        (["--quota", "vision"], "'vision' is no quota: write QUEUE:RESOURCE=AMOUNT"),
        (["--quota", "vision:cpu=8"], "there is no queue 'vision': none is declared"),
        (["--scale-arrivals", "0"], "0 is too small: the least is 0.001"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
async def test_wrong_change_is_refused(simulate: Run, arguments: list[str], problem: str) -> None:
    ran = await simulate("-", *arguments, stdin=EXAMPLE_TEXT)
    assert (ran.code, ran.out) == (2, "")
    assert problem in ran.err


async def test_wrong_line_of_a_trace_is_named_and_nothing_is_printed(simulate: Run, tmp_path: Path) -> None:
    right, wrong = GOLDEN / "hub.yaml", tmp_path / "wrong.yaml"
    wrong.write_text(right.read_text(encoding="utf-8").replace("name: hub", "name: wrong"))
    cut = (GOLDEN / "philly.csv").read_text(encoding="utf-8").partition(",480.0")[0]
    (tmp_path / "philly.csv").write_text(cut)
    ran = await simulate(str(right), str(wrong))
    assert (ran.code, ran.out) == (2, "")
    line = cut.count("\n") + 1
    problem = f"line {line}: has 3 fields, and the first line 5: is the file truncated?"
    assert ran.err == f"dispatcher: {tmp_path / 'philly.csv'}: {problem}\n"


async def test_time_after_the_last_year_is_refused_in_one_line(simulate: Run) -> None:
    late = EXAMPLE_TEXT.replace("arrival: 90", "arrival: 3600000000")
    assert late != EXAMPLE_TEXT
    ran = await simulate("-", "--scale-arrivals", "0.001", stdin=late)
    assert ran.out == ""
    assert ran.err.endswith("a time lies after the year 9999: state shorter times\n")


async def test_two_runs_have_two_names(simulate: Run) -> None:
    ran = await simulate(str(GOLDEN / "hub.yaml"), str(GOLDEN / "hub.yaml"))
    assert (ran.code, ran.out) == (2, "")
    assert "policy.name: another file has a run with the name hub, too" in ran.err


async def test_missing_trace_is_refused(simulate: Run) -> None:
    ran = await simulate("-", stdin="clusters: [{name: a}]\ntrace: {format: swf, file: nothing.swf}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "dispatcher: nothing.swf: No such file or directory\n"


class Interrupted(Simulation):
    """A simulation that ends by Ctrl-C when two gangs have arrived."""

    def advance(self) -> bool:
        """Move on, up to there."""
        if self.arrived == 2:
            raise KeyboardInterrupt
        return super().advance()


def test_interrupted_run_has_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    run = read_run(yaml.safe_load(EXAMPLE_TEXT), "fifo")
    runs, is_interrupted = run_all(
        [("cut", Interrupted(run.world, run.jobs())), ("next", run.simulation(run.jobs()))]
    )
    assert is_interrupted
    assert [(each.name, each.measured.all.gangs, each.measured.all.left) for each in runs] == [("cut", 2, 1)]
    said = "interrupted: 2 of 3 gangs of cut had arrived, and the measures are of these\n"
    assert capsys.readouterr() == ("", said)
