"""Traces in files: what each line becomes, and what is said of a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.document import Entry
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.simulation.job import Job
from dispatcher.core.simulation.run_file import read_run
from dispatcher.core.simulation.traces.rows import TraceError
from dispatcher.core.simulation.traces.spec import KEYS, Format, read_trace
from tests.unit.core.simulation.runs import cluster

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
MURI = "job_id,num_gpu,submit_time,duration\n"
SWF = "{line} {at} -1 {runs} {cpus} -1 -1 {cpus} 600 -1 1 1 1 -1 1 -1 -1 -1\n"
CLUSTERS = [cluster("a", 2), cluster("b", 1)]
CPUS = [{"name": "a", "nodes": [{"name": "node", "count": 2, "allocatable": {"cpu": 8}}]}]


def jobs(text: str, format_: str, policy: dict[str, Any] | None = None, **trace: object) -> list[Job]:
    """The jobs of a file with this text."""
    clusters = CPUS if format_ == "swf" else CLUSTERS
    spec = {"format": format_, "file": "trace", **trace}
    run = read_run({"clusters": clusters, "trace": spec, "policy": policy or {}}, "run")
    return run.jobs(text.splitlines(keepends=True))


def shapes(found: list[Job]) -> list[tuple[float, float | None, int, dict[str, int]]]:
    """When each job arrives, how long it runs, and its pods."""
    return [
        (each.at, each.runs, each.gang.pods, dict(each.gang.pod_sets[0].requests.items())) for each in found
    ]


def test_philly_is_sorted_and_begins_at_its_first_job() -> None:
    text = f"{HEADER}2017-10-01 00:01:00,60.0,12,0,a\n2017-10-01 00:00:00,30.5,2,0,b\n\n"
    assert shapes(jobs(text, "philly")) == [
        (0.0, 30.5, 1, {"nvidia.com/gpu": 2}),
        (60.0, 60.0, 2, {"nvidia.com/gpu": 8}),
    ]


def test_only_jobs_of_the_span_and_of_the_named_clusters_are_taken() -> None:
    text = "".join(
        (
            HEADER,
            "2017-10-01 00:00:00,1,1,0,vc\n",
            "2017-10-01 12:00:00,2,1,0,vc\n",
            "2017-10-01 13:00:00,3,1,0,other\n",
            "2017-10-02 00:00:00,4,1,0,vc\n",
        )
    )
    span: dict[str, Any] = {"from": "2017-10-01T06:00", "until": "2017-10-02", "clusters": {"vc": "b"}}
    found = jobs(text, "philly", None, **span)
    assert [(each.line, each.runs) for each in found] == [(3, 2.0)]
    assert str(found[0].requirements.selector) == "simulation/cluster in (b)"


def test_muri_has_milliseconds() -> None:
    assert shapes(jobs(f"{MURI}0,4,1000,2500\n1,8,1500,100\n", "muri")) == [
        (0.0, 2.5, 1, {"nvidia.com/gpu": 4}),
        (0.5, 0.1, 1, {"nvidia.com/gpu": 8}),
    ]


def test_swf_has_processors_and_limits() -> None:
    text = (
        "; a comment\n"
        + SWF.format(line=1, at=5, runs=100, cpus=4)
        + SWF.format(line=2, at=9, runs=-1, cpus=4)
    )
    found = jobs(text, "swf", {"cluster": "any"})
    assert shapes(found) == [(0.0, 100.0, 1, {"cpu": 4000})]
    assert found[0].limit == 600


@pytest.mark.parametrize(("limits", "limit"), [("none", 0), ("trace", 600), ("true", 100)])
def test_policy_says_what_is_known_of_run_times(limits: str, limit: int) -> None:
    text = SWF.format(line=1, at=5, runs=99.5, cpus=4)
    assert jobs(text, "swf", {"cluster": "any", "limits": limits})[0].limit == limit


@pytest.mark.parametrize(
    ("text", "format_", "problem"),
    [
        ("", "philly", "line 1: the file is empty"),
        (f"{HEADER.strip()}, duration\n", "philly", 'line 1: two columns are named "duration"'),
        ("\na,a\n", "muri", 'line 2: two columns are named "a"'),
        ("a,b\n", "philly", "line 1: the first line has no column timestamp, duration, num_gpus, cluster"),
        (
            f"{HEADER}2017-10-01,5,1\n",
            "philly",
            "line 2: has 3 fields, and the first line 5: is the file truncated?",
        ),
        (f"{HEADER}2017-10-01,-5,1,0,a\n", "philly", "line 2: duration is negative: -5"),
        (f"{HEADER}2017-10-01,x,1,0,a\n", "philly", 'line 2: duration must be a number, not "x"'),
        (f"{HEADER}2017-10-01,nan,1,0,a\n", "philly", "line 2: duration is out of range: nan"),
        (
            f"{HEADER}yesterday,5,1,0,a\n",
            "philly",
            "line 2: timestamp must be a time such as 2017-10-01 08:30:00",
        ),
        (f"{HEADER}2017-10-01,5,0,0,a\n", "philly", "line 2: num_gpus must be a whole number from 1"),
        (
            f"{HEADER}2017-10-01,5,17,0,a\n",
            "philly",
            "line 2: the job is larger than everything: 17 nvidia.com/gpu",
        ),
        (f"{HEADER}2017-10-01,5,1,0,c\n", "philly", 'line 2: there is no cluster "c" in the file'),
        (
            f"{MURI}0,1,5000,1\n1,1,4000,1\n",
            "muri",
            "line 3: it arrives at 4 s, before the job in line 2 at 5 s",
        ),
        ("1 2 3\n", "swf", "line 1: has 3 fields, not 18: is the file truncated?"),
        (SWF.format(line=1, at=0, runs=-7, cpus=1), "swf", "line 1: run time is negative: -7"),
        (
            SWF.format(line=1, at=0, runs=7, cpus=32),
            "swf",
            "line 1: the job is larger than everything: 32 cpu",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) and each.startswith("line") else "",
)
def test_wrong_line_is_named(text: str, format_: str, problem: str) -> None:
    with pytest.raises(TraceError) as caught:
        jobs(text, format_)
    assert str(caught.value).startswith(problem)


def test_unsorted_file_is_sorted_if_the_trace_says_so() -> None:
    found = jobs(f"{MURI}0,1,5000,1\n1,1,4000,1\n", "muri", sort=True)
    assert [each.line for each in found] == [3, 2]


VALUES: dict[str, Any] = {
    "file": "trace",
    "from": "2017-10-01",
    "until": "2017-10-02",
    "clusters": {"vc": "a"},
    "queues": {"vc": "q"},
    "resource": "cpu",
    "perNode": 4,
    "sort": True,
    "gangs": [],
}
WITHOUT_EFFECT = [
    ("list", ("file", "from", "until", "clusters", "queues", "resource", "perNode", "sort")),
    ("philly", ("sort", "gangs")),
    ("muri", ("from", "until", "clusters", "queues", "gangs")),
    ("swf", ("from", "until", "gangs")),
]


def refusal_of(trace: dict[str, Any]) -> str:
    """Why a key `trace` is refused; empty if it is not."""
    try:
        read_trace(Entry(trace, "trace"))
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("format_", "without"), WITHOUT_EFFECT, ids=lambda each: str(each))
def test_key_without_an_effect_with_the_format_is_refused_by_its_name(
    format_: str, without: tuple[str, ...]
) -> None:
    right = {"format": format_, **({} if format_ == "list" else {"file": "trace"})}
    refusals = {key: refusal_of({**right, key: value}) for key, value in VALUES.items()}
    known = ", ".join(("format", *KEYS[Format(format_)]))
    assert {key: problem for key, problem in refusals.items() if problem} == {
        key: f"trace.{key}: has no effect with format {format_}; known are {known}" for key in without
    }


@pytest.mark.parametrize(
    ("trace", "policy", "problem"),
    [
        ({"clusters": {"vc": "c"}}, {}, 'trace.clusters.vc: there is no cluster "c"'),
        ({"queues": {"vc": "q"}}, {}, 'trace.queues.vc: there is no queue "q"'),
        ({}, {"queue": "q"}, 'policy.queue: there is no queue "q"'),
        ({"resource": "amd.com/gpu"}, {}, "clusters: no node has amd.com/gpu"),
        ({"from": "soon"}, {}, "trace.from: must be a day or a time"),
    ],
    ids=str,
)
def test_name_that_the_file_does_not_have_is_refused(
    trace: dict[str, Any], policy: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError) as caught:
        jobs(HEADER, "philly", policy, **trace)
    assert problem in str(caught.value)
