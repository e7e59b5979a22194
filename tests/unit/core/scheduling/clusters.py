"""Any requirement of a cluster and anything known of one, for property tests: few values, so that they often meet."""

from __future__ import annotations

from typing import TypedDict

from hypothesis import strategies as st

from dispatcher.api.selector import parse_selector
from dispatcher.core.model.clusters.cluster_errors import ErrorCounts
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.core.scheduling.fit.cluster_filters import Closed

JOB = ("batch/v1", "Job")
RAY = ("ray.io/v1", "RayCluster")


class Known(TypedDict, total=False):
    """What a site knows of its cluster beside the capacity."""

    labels: dict[str, str]
    closed: Closed | None
    missing_kinds: frozenset[tuple[str, str]]
    forbidden_kinds: frozenset[tuple[str, tuple[str, str]]]
    missing_namespaces: frozenset[str]
    closed_namespaces: frozenset[str]
    creates_namespaces: bool
    errors: ErrorCounts


SELECTORS = st.sampled_from(["", "", "region=eu", "region!=eu", "!spot", "region in (eu, us)"]).map(
    lambda text: parse_selector(text, "")
)
_ANY_WHERE = st.builds(
    ClusterRequirements,
    selector=SELECTORS,
    prefers=SELECTORS,
    namespace=st.sampled_from(["", "team-a", "team-b"]),
    kinds=st.frozensets(st.sampled_from([JOB, RAY])),
    ruled_out=st.frozensets(st.tuples(st.sampled_from(["east", "west"]), st.just("a Job is not ours"))),
)
WHERES = st.just(ANYWHERE) | _ANY_WHERE

CLOSURES = st.sampled_from(
    [None, None, None, Closed("ClusterCordoned", "new racks"), Closed("ClusterUnreachable", "timed out")]
)
KNOWN = st.builds(
    Known,
    labels=st.dictionaries(st.sampled_from(["region", "spot"]), st.sampled_from(["eu", "us"])),
    closed=CLOSURES,
    missing_kinds=st.sampled_from([frozenset(), frozenset(), frozenset({RAY})]),
    forbidden_kinds=st.sampled_from([frozenset(), frozenset(), frozenset({("team-b", JOB)})]),
    missing_namespaces=st.sampled_from([frozenset(), frozenset({"team-b"})]),
    closed_namespaces=st.sampled_from([frozenset(), frozenset(), frozenset({"team-a"})]),
    creates_namespaces=st.booleans(),
    errors=st.builds(
        ErrorCounts,
        st.integers(0, 2),
        st.dictionaries(st.sampled_from(["default", "team"]), st.integers(1, 2), max_size=2),
    ),
)
