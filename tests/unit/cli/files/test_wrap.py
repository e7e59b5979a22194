"""`kubectl aw wrap`: the AppWrappers that it prints, in each form, and the objects that it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import Ran, Run, runner
from tests.unit.cli.files.test_demand import appwrapper, item, job, obj

Json = dict[str, Any]


@pytest.fixture
def wrap(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher wrap …`."""
    monkeypatch.delenv("DISPATCHER_KINDS_FILE", raising=False)
    return runner(monkeypatch, capsys, "wrap")


def made(name: str, *wrapped: Json, metadata: Json | None = None, **spec: object) -> Json:
    items = [{"generictemplate": each} for each in wrapped]
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {**spec, "resources": {"GenericItems": items}},
    }


SETTINGS = obj("v1", "ConfigMap", None, "settings")
del SETTINGS["spec"]


async def test_gang_of_a_file_is_printed_with_the_fields_of_the_options(wrap: Run) -> None:
    options = ("--queue", "vision", "--priority", "5", "--expected", "90m", "--limit", "1.5s")
    ran = await wrap("-", *options, "--min-available", "2", stdin=yaml.safe_dump_all([SETTINGS, job()]))
    assert (ran.code, ran.err) == (0, "")
    assert yaml.safe_load(ran.out) == made(
        "train",
        SETTINGS,
        job(),
        metadata={"labels": {"dispatcher.codeflare.dev/queue": "vision"}},
        priority=5,
        schedulingSpec={"minAvailable": 2, "dispatchDuration": {"expected": 5400, "limit": 2}},
    )


@pytest.mark.parametrize(
    ("options", "annotation"),
    [
        (["--notify", "team-slack=Ended"], "team-slack=Ended"),
        (["--notify", "mail=Failed,Waiting:2h", "--notify", "hook=all"], "mail=Failed,Waiting:2h hook=all"),
        (["--notify", "mail=Failed hook=All"], "mail=Failed hook=All"),
    ],
    ids=["one", "two", "two-in-one"],
)
async def test_choices_of_notifications_are_an_annotation(
    wrap: Run, options: list[str], annotation: str
) -> None:
    ran = await wrap("-", *options, stdin=yaml.safe_dump(job()))
    assert yaml.safe_load(ran.out)["metadata"]["annotations"] == {
        "dispatcher.codeflare.dev/notify": annotation
    }


async def test_several_appwrappers_are_a_stream_or_a_list(wrap: Run) -> None:
    theirs = appwrapper(item(job("inner")), name="theirs")
    file = yaml.safe_dump_all([job("a"), theirs, job("b")])
    expected = [made("a", job("a")), theirs, made("b", job("b"))]

    streamed = await wrap("-", "--each", stdin=file)
    listed = await wrap("-", "--each", "-o", "json", stdin=file)
    single = await wrap("-", "-o", "json", stdin=yaml.safe_dump(job("a")))

    assert list(yaml.safe_load_all(streamed.out)) == expected
    assert json.loads(listed.out) == {"apiVersion": "v1", "kind": "List", "items": expected}
    assert json.loads(single.out) == expected[0]


async def test_what_is_printed_is_read_back_as_it_is(wrap: Run) -> None:
    for form in ("yaml", "json"):
        ran = await wrap("-", "--each", "-o", form, stdin=yaml.safe_dump_all([job("a"), job("b")]))
        assert await wrap("-", "-o", form, stdin=ran.out) == ran


async def test_objects_that_no_gang_has_are_named_on_stderr(wrap: Run) -> None:
    role = obj("rbac.authorization.k8s.io/v1", "ClusterRole", None, "reader")
    secret = obj("v1", "Secret", None, "token")
    suspended = job(suspend=True)
    ran = await wrap("-", stdin=yaml.safe_dump_all([role, secret, suspended]))
    assert yaml.safe_load(ran.out) == made("train", suspended)
    assert (ran.code, ran.err) == (
        0,
        "ClusterRole/reader is not wrapped: it makes no pods and is no AppWrapper. kubectl apply creates it.\n"
        "Secret/token is not wrapped: it is a Secret, and all readers of an AppWrapper would read its values. kubectl "
        "apply creates it.\n"
        "train: Job/train is suspended: it makes no pods until it is resumed\n",
    )


async def test_namespace_is_written_where_none_is(wrap: Run) -> None:
    ran = await wrap("-", "-n", "team-a", stdin=yaml.safe_dump(job()))
    assert yaml.safe_load(ran.out)["metadata"] == {"name": "train", "namespace": "team-a"}


async def test_declared_kind_needs_its_declaration(wrap: Run, tmp_path: Path) -> None:
    kinds = tmp_path / "kinds.yaml"
    kinds.write_text(
        "kinds: [{group: example.com, kind: Training, podSets: [{template: spec.template, count: 2}]}]"
    )
    training = yaml.safe_dump(obj("example.com/v1", "Training", job()["spec"], "t"))
    assert (await wrap("-", stdin=training)).code == 2
    ran = await wrap("-", "--kinds", str(kinds), stdin=training)
    assert (ran.code, yaml.safe_load(ran.out)["metadata"]["name"]) == (0, "t")


@pytest.mark.parametrize(
    ("documents", "options", "problem"),
    [
        ([SETTINGS], [], "<stdin>: no object makes pods"),
        (
            [job(), obj("example.com/v1", "Simulation", {})],
            [],
            "<stdin>: object 2 (Simulation): kind: no template says what the pods ask for",
        ),
        (
            [appwrapper(item(job()))],
            ["--queue", "q"],
            "<stdin>: object 1 (AppWrapper): spec: is submitted as it is",
        ),
        (
            [appwrapper(item(job()))],
            ["--notify", "mail=Ended"],
            "<stdin>: object 1 (AppWrapper): spec: is submitted as it is",
        ),
        (
            [job(), job()],
            ["--each"],
            "two AppWrappers would be named train: an AppWrapper has the name of its first",
        ),
        (
            [{**job(), "metadata": {"name": "train", "namespace": "team-b"}}],
            ["-n", "team-a"],
            "<stdin>: the gang of Job/train: metadata.namespace: is team-b, which contradicts -n team-a",
        ),
    ],
    ids=[
        "no-pods",
        "unknown-kind",
        "option-for-an-appwrapper",
        "notify-for-an-appwrapper",
        "names",
        "namespaces",
    ],
)
async def test_wrong_file_prints_nothing(
    wrap: Run, documents: list[Json], options: list[str], problem: str
) -> None:
    ran = await wrap("-", *options, stdin=yaml.safe_dump_all(documents))
    assert (ran.code, ran.out, ran.err[: len(problem) + 12]) == (2, "", f"dispatcher: {problem}")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--expected", "soon"], "'soon' is no duration: a number and s, m, h, d or w"),
        (["--min-available", "0"], "0 is too small: the least is 1"),
        (["--priority", "high"], "'high' is no whole number"),
        (["--notify", "team-slack"], "'team-slack' is not TARGET=EVENT,EVENT, for example team-slack=Failed"),
        (["--notify", "mail=Done"], "'mail=Done' has the unknown event 'Done': there are Started, Completed"),
        (["--notify", "mail=Waiting:soon"], "has no duration that counts in 'Waiting:soon'"),
        (
            ["--notify", "http://host/x=Ended"],
            "'http://host/x=Ended' names no target: a name has small letters",
        ),
        (["--notify", ""], "names no target: write TARGET=EVENT,EVENT"),
        (["--notify", "mail=Ended", "--notify", "x"], "'x' is not TARGET=EVENT,EVENT"),
        (["--notify", " ".join(f"t{n}=Ended" for n in range(9))], "'t8=Ended' is one target too many"),
        (["--notify", "mail=" + "Ended," * 200], "has more than 1024 characters"),
        (["-o", "wide"], "'wide' is not one of 'yaml', 'json'"),
    ],
    ids=" ".join,
)
async def test_wrong_option_is_wrong_usage(wrap: Run, options: list[str], problem: str) -> None:
    ran = await wrap("-", *options, stdin=yaml.safe_dump(job()))
    assert (ran.code, ran.out, problem in ran.err) == (2, "", True)


async def test_help_shows_examples_and_exit_codes(wrap: Run) -> None:
    ran = await wrap("--help")
    assert ran == Ran(0, ran.out)
    assert "Examples:\n    kubectl aw wrap ray-job.yaml" in ran.out
    assert "Exit codes:\n    0  written" in ran.out
