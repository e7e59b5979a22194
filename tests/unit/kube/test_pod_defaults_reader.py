"""The defaults of pods in a cluster are read once a minute, and a refusal is no answer."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.core.kinds.pods.pod_defaults import MOST_CLASSES, NO_DEFAULTS, PodDefaults
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.pod_defaults_reader import (
    KEPT_SECONDS,
    LONGEST_SURVEY_SECONDS,
    PodDefaultsReader,
)
from tests.fakes import FakeApiServer, Reply, answer, refusal

RANGES = "/api/v1/namespaces/team/limitranges"
ALL_RANGES = "/api/v1/limitranges"
ALL_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
DEVICE_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
KATA = "/apis/node.k8s.io/v1/runtimeclasses/kata"
LIMIT_RANGE = {"spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "500m"}}]}}
OVERHEAD = {"cpu": "250m"}
NONE: frozenset[str] = frozenset()


class Time:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def reader(client: ClusterClient, time: Time) -> PodDefaultsReader:
    return PodDefaultsReader(client, "west", "manifests/overlays/member/member.yaml", time)


async def test_defaults_and_overheads_are_read(server: FakeApiServer, reader: PodDefaultsReader) -> None:
    server.on("GET", RANGES, answer({"items": [LIMIT_RANGE]}))
    server.on("GET", KATA, answer({"handler": "kata", "overhead": {"podFixed": OVERHEAD}}))
    found = await reader.read("team", frozenset({"kata"}))
    assert found == PodDefaults({"cpu": "500m"}, {"kata": OVERHEAD})


async def test_answers_are_kept_for_a_minute(
    server: FakeApiServer, reader: PodDefaultsReader, time: Time
) -> None:
    server.on("GET", RANGES, answer({"items": []}))
    for time.now in (0.0, KEPT_SECONDS - 1, KEPT_SECONDS, KEPT_SECONDS + 1):
        assert await reader.read("team", NONE) == NO_DEFAULTS
    assert len(server.requests("GET")) == 2


@pytest.mark.parametrize(
    ("surveyed_at", "asked_at", "found"),
    [
        pytest.param(1, KEPT_SECONDS, "2", id="younger"),
        pytest.param(1, KEPT_SECONDS - 1, "1", id="answer-is-kept"),
        pytest.param(0, KEPT_SECONDS, "3", id="not-younger"),
        pytest.param(1, LONGEST_SURVEY_SECONDS, "2", id="last-moment"),
        pytest.param(1, LONGEST_SURVEY_SECONDS + 1, "3", id="survey-is-old"),
    ],
)
async def test_younger_survey_takes_the_place_of_an_old_answer(
    server: FakeApiServer,
    reader: PodDefaultsReader,
    time: Time,
    surveyed_at: float,
    asked_at: float,
    found: str,
) -> None:
    server.on("GET", DEVICE_CLASSES, refusal(404, ""))
    server.on("GET", ALL_RANGES, answer(listed(limit_range("2", "team"))))
    server.on(
        "GET", ALL_CLASSES, answer(listed({"metadata": {"name": "kata"}, "overhead": {"podFixed": OVERHEAD}}))
    )
    server.on("GET", KATA, refusal(404, "NotFound"))
    server.on("GET", RANGES, answer(listed(limit_range("1"))))
    if surveyed_at == 0:
        await reader.survey()
    await reader.read("team", frozenset({"kata"}))
    time.now = surveyed_at
    await reader.survey()
    server.on("GET", RANGES, answer(listed(limit_range("3"))))
    time.now = asked_at
    overheads = {"kata": OVERHEAD} if found == "2" else {}
    assert await reader.read("team", frozenset({"kata"})) == PodDefaults({"cpu": found}, overheads)


async def test_survey_is_no_first_answer_about_a_namespace(
    server: FakeApiServer, reader: PodDefaultsReader
) -> None:
    """A namespace, and its LimitRange, may be younger than the survey."""
    server.on("GET", DEVICE_CLASSES, refusal(404, ""))
    for path in (ALL_RANGES, ALL_CLASSES):
        server.on("GET", path, answer(listed()))
    await reader.survey()
    server.on("GET", RANGES, answer(listed(limit_range("1"))))
    assert await reader.read("team", NONE) == PodDefaults({"cpu": "1"})


async def test_namespace_is_read_again_if_the_survey_was_refused(
    server: FakeApiServer, reader: PodDefaultsReader, time: Time
) -> None:
    server.on("GET", DEVICE_CLASSES, refusal(404, ""))
    for path in (ALL_RANGES, ALL_CLASSES):
        server.on("GET", path, refusal(403, "Forbidden"))
    server.on("GET", RANGES, answer(listed(limit_range("1"))))
    await reader.read("team", NONE)
    time.now = KEPT_SECONDS
    await reader.survey()
    server.on("GET", RANGES, answer(listed(limit_range("3"))))
    assert await reader.read("team", NONE) == PodDefaults({"cpu": "3"})


def listed(*items: object) -> dict[str, object]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def limit_range(cpu: str, namespace: str = "") -> dict[str, object]:
    return {
        "metadata": {"namespace": namespace, "name": "defaults"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": cpu}}]},
    }


@pytest.mark.parametrize("status", [403, 404])
async def test_defaults_are_unknown_after_a_refusal_which_is_logged_once(
    server: FakeApiServer, reader: PodDefaultsReader, status: int
) -> None:
    server.on("GET", RANGES, refusal(status, "Refused"))
    server.on("GET", KATA, refusal(status, "Refused"))
    with capture_logs() as logs:
        assert await reader.read("team", frozenset({"kata"})) is None
        assert await reader.read("team", frozenset({"kata"})) is None
    (line,) = logs
    assert (line["cluster"], line["remedy"]) == ("west", "apply manifests/overlays/member/member.yaml")


async def test_defaults_are_unknown_if_only_the_runtime_class_is_refused(
    server: FakeApiServer, reader: PodDefaultsReader
) -> None:
    server.on("GET", RANGES, answer({"items": [LIMIT_RANGE]}))
    server.on("GET", KATA, refusal(403, "Forbidden"))
    assert await reader.read("team", frozenset({"kata"})) is None
    assert await reader.read("team", NONE) == PodDefaults({"cpu": "500m"})


async def test_runtime_class_that_does_not_exist_has_no_overhead(
    server: FakeApiServer, reader: PodDefaultsReader
) -> None:
    server.on("GET", RANGES, answer({"items": []}))
    server.on("GET", KATA, refusal(404, "NotFound"))
    assert await reader.read("team", frozenset({"kata"})) == NO_DEFAULTS


@pytest.mark.parametrize("nonsense", [[], "text", None, {"items": 7}, {"items": ["text", {"spec": []}]}])
async def test_answer_that_makes_no_sense_has_no_defaults(
    server: FakeApiServer, reader: PodDefaultsReader, nonsense: object
) -> None:
    server.on("GET", RANGES, answer(nonsense))
    server.on("GET", KATA, answer(nonsense))
    assert await reader.read("team", frozenset({"kata"})) == NO_DEFAULTS


async def test_server_that_does_not_answer_is_asked_again(
    server: FakeApiServer, reader: PodDefaultsReader
) -> None:
    server.on("GET", RANGES, refusal(503, "Unavailable"))
    with pytest.raises(errors.Unavailable):
        await reader.read("team", NONE)
    server.on("GET", RANGES, answer({"items": [LIMIT_RANGE]}))
    assert await reader.read("team", NONE) == PodDefaults({"cpu": "500m"})


@pytest.mark.parametrize("name", ["../../secrets", "a/b", "..", "x" * 300])
async def test_name_of_no_runtime_class_is_not_asked_for(
    server: FakeApiServer, reader: PodDefaultsReader, name: str
) -> None:
    server.on("GET", RANGES, answer({"items": []}))
    assert await reader.read("team", frozenset({name})) == NO_DEFAULTS
    assert [each.path for each in server.requests("GET")] == [RANGES]


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        pytest.param(
            answer(
                {
                    "metadata": {"resourceVersion": "1"},
                    "items": [
                        {"metadata": {"name": "a"}, "spec": {"extendedResourceName": "a.com/gpu"}},
                        {"metadata": {"name": "a"}, "spec": {}},
                        {"metadata": {"name": "a"}, "spec": []},
                    ],
                }
            ),
            {"a.com/gpu"},
            id="named",
        ),
        pytest.param(refusal(404, ""), set(), id="not-served"),
        pytest.param(refusal(403, "Forbidden"), set(), id="not-shown"),
    ],
)
async def test_survey_reads_the_resources_that_device_classes_name(
    server: FakeApiServer, reader: PodDefaultsReader, answered: Reply, expected: set[str]
) -> None:
    for path in (ALL_RANGES, ALL_CLASSES):
        server.on("GET", path, answer(listed()))
    server.on("GET", DEVICE_CLASSES, answered)
    with capture_logs() as logs:
        await reader.survey()
    assert (set(reader.device_resources), list(logs)) == (expected, [])


async def test_few_runtime_classes_are_asked_for(server: FakeApiServer, reader: PodDefaultsReader) -> None:
    server.on("GET", RANGES, answer({"items": []}))
    names = frozenset(f"class-{number:02}" for number in range(100))
    for name in names:
        server.on("GET", f"/apis/node.k8s.io/v1/runtimeclasses/{name}", refusal(404, "NotFound"))
    await reader.read("team", names)
    assert len(server.requests("GET")) == 1 + MOST_CLASSES
