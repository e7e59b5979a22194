"""MCAD's QuotaSubtrees as queues: the shapes of its own suites, what is malformed, and who is charged where."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.api.document import Entry
from dispatcher.api.selector import EVERYTHING
from dispatcher.core.queues.declaration import read_queue
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim, WithinQueue
from dispatcher.core.queues.quota_subtrees import Problem, QuotaTrees, leaves_of, read_quota_subtrees

Json = dict[str, Any]

TWO_TREES = """
apiVersion: quota.codeflare.dev/v1alpha1
kind: QuotaSubtree
metadata: {name: context-root, namespace: kube-system, labels: {tree: quota_context}}
spec:
  children:
  - name: context-root
    quotas: {requests: {cpu: 1075m, memory: 1045Mi, nvidia.com/gpu: 16}}
---
apiVersion: quota.codeflare.dev/v1alpha1
kind: QuotaSubtree
metadata: {name: context-root-children, namespace: kube-system, labels: {tree: quota_context}}
spec:
  parent: context-root
  children:
  - name: gold
    quotas: {requests: {cpu: 1075m, memory: 450Mi, nvidia.com/gpu: 8}}
  - name: silver
    quotas: {hardLimit: false, requests: {cpu: 1075m, memory: 400Mi, nvidia.com/gpu: 8}}
  - name: bronze
    quotas: {hardLimit: true, requests: {cpu: 900m, memory: 300Mi, nvidia.com/gpu: 8}}
  - name: default
    quotas: {hardLimit: false, requests: {cpu: 0m, memory: 0Mi, nvidia.com/gpu: 0}}
---
apiVersion: ibm.com/v1
kind: QuotaSubtree
metadata: {name: service-root, namespace: kube-system, labels: {tree: quota_service}}
spec:
  children:
  - name: service-root
    quotas: {disabled: true, requests: {cpu: 1075m, memory: 1045Mi}}
---
apiVersion: ibm.com/v1
kind: QuotaSubtree
metadata: {name: service-root-children, namespace: kube-system, labels: {tree: quota_service}}
spec:
  parent: service-root
  children:
  - name: gold
    quotas: {requests: {cpu: 1075m, memory: 1045Mi}}
  - name: default
    quotas: {requests: {cpu: 0, memory: 0}}
"""
"""The trees of MCAD's suite of the quota forest, half of them in the older group."""

QUEUES = """
- {name: quota_context/context-root, resources: {
    cpu: {nominalQuota: 1075m}, memory: {nominalQuota: 1045Mi}, nvidia.com/gpu: {nominalQuota: 16}}}
- {name: quota_context/gold, parent: quota_context/context-root, resources: {
    cpu: {nominalQuota: 1075m}, memory: {nominalQuota: 450Mi}, nvidia.com/gpu: {nominalQuota: 8}}}
- {name: quota_context/silver, parent: quota_context/context-root, resources: {
    cpu: {nominalQuota: 1075m}, memory: {nominalQuota: 400Mi}, nvidia.com/gpu: {nominalQuota: 8}}}
- {name: quota_context/bronze, parent: quota_context/context-root, resources: {
    cpu: {nominalQuota: 900m, borrowingLimit: 0},
    memory: {nominalQuota: 300Mi, borrowingLimit: 0},
    nvidia.com/gpu: {nominalQuota: 8, borrowingLimit: 0}}}
- {name: quota_context/default, parent: quota_context/context-root, resources: {
    cpu: {nominalQuota: 0}, memory: {nominalQuota: 0}, nvidia.com/gpu: {nominalQuota: 0}}}
- {name: quota_service/service-root, resources: {cpu: {nominalQuota: 1075m}, memory: {nominalQuota: 1045Mi}}}
- {name: quota_service/gold, parent: quota_service/service-root, resources: {
    cpu: {nominalQuota: 1075m}, memory: {nominalQuota: 1045Mi}}}
- {name: quota_service/default, parent: quota_service/service-root, resources: {
    cpu: {nominalQuota: 0}, memory: {nominalQuota: 0}}}
"""
"""The same trees as a scenario file declares them."""

PREEMPTION = Preemption(WithinQueue.LOWER_PRIORITY, Reclaim.ANY)


def subtree(
    *children: object,
    tree: object = "quota",
    name: str = "s",
    api_version: str = "quota.codeflare.dev/v1alpha1",
    **spec: object,
) -> Json:
    metadata = {"name": name, "namespace": "kube-system", "labels": {"tree": tree}}
    return {
        "apiVersion": api_version,
        "kind": "QuotaSubtree",
        "metadata": metadata,
        "spec": {**spec, "children": list(children)},
    }


def node(name: object, hard: object = None, **requests: object) -> Json:
    return {"name": name, "quotas": {"hardLimit": hard, "requests": requests}}


def queue(name: str, parent: str | None = None, **cpu: int) -> Queue:
    resources = {"cpu": Quota(**cpu)} if cpu else {}
    parent = parent and f"quota/{parent}"
    return Queue(f"quota/{name}", parent, resources, preemption=PREEMPTION, namespace_selector=EVERYTHING)


def test_trees_of_mcads_suite_are_queues() -> None:
    documents = list(yaml.safe_load_all(TWO_TREES))
    of_mcad = {
        "preemption": {"withinQueue": "LowerPriority", "reclaim": "Any"},
        "namespaceSelector": "",
    }
    expected = tuple(
        read_queue(each["name"], Entry({**each, **of_mcad}, "queues")) for each in yaml.safe_load(QUEUES)
    )

    assert read_quota_subtrees(documents) == QuotaTrees(expected, ("quota_context", "quota_service"))


def test_order_of_the_objects_does_not_matter() -> None:
    documents = list(yaml.safe_load_all(TWO_TREES))
    expected = read_quota_subtrees(documents)

    assert {repr(read_quota_subtrees(each)) for each in itertools.permutations(documents)} == {repr(expected)}


def test_no_object_declares_nothing() -> None:
    assert read_quota_subtrees([]) == QuotaTrees()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(subtree(node("a", cpu=1)), queue("a", nominal=1000), id="no-parent"),
        pytest.param(subtree(node("a", cpu=1), parent=""), queue("a", nominal=1000), id="empty-parent"),
        pytest.param(subtree(node("a", cpu=1), parent="nil"), queue("a", nominal=1000), id="parent-nil"),
        pytest.param(subtree(node("a", cpu=1), parent="r"), queue("a", "r", nominal=1000), id="parent"),
        pytest.param(
            subtree(node("a", True, cpu=1)), queue("a", nominal=1000, borrowing_limit=0), id="hard-limit"
        ),
        pytest.param(subtree(node("a", True)), queue("a"), id="hard-limit-of-nothing"),
        pytest.param(subtree({"name": "a"}), queue("a"), id="no-quotas"),
        pytest.param(subtree({"name": "a", "quotas": {}}), queue("a"), id="no-requests"),
        pytest.param(subtree(node("a", cpu=None)), queue("a"), id="null-amount"),
        pytest.param(
            subtree({"name": "a", "namespace": "n", "path": "p", "quotas": {"disabled": 3}}),
            queue("a"),
            id="fields-without-effect",
        ),
        pytest.param(
            subtree(node("a", **{"x-corp.io/npu": 2})),
            replace(queue("a"), resources={"x-corp.io/npu": Quota(2)}),
            id="resource-that-begins-with-x",
        ),
    ],
)
def test_node_is_a_queue(document: Json, expected: Queue) -> None:
    assert read_quota_subtrees([document]) == QuotaTrees((expected,), ("quota",))


def test_child_may_have_more_than_its_parent_leaves() -> None:
    documents = [subtree(node("r", cpu=2)), subtree(node("a", cpu=1), node("b", cpu=2), parent="r", name="t")]

    assert read_quota_subtrees(documents) == QuotaTrees(
        (queue("r", nominal=2000), queue("a", "r", nominal=1000), queue("b", "r", nominal=2000)), ("quota",)
    )


def test_circles_and_parents_that_do_not_exist_are_left_to_the_forest() -> None:
    documents = [subtree(node("a"), parent="b", name="1"), subtree(node("b"), parent="a", name="2")]

    assert read_quota_subtrees([*documents, subtree(node("c"), parent="nobody", name="3")]) == QuotaTrees(
        (queue("a", "b"), queue("b", "a"), queue("c", "nobody")), ("quota",)
    )


@pytest.mark.parametrize(
    ("child", "message"),
    [
        pytest.param("a", 'spec.children[1]: must be an object, not "a"', id="text"),
        pytest.param(None, "spec.children[1].name: is required", id="null"),
        pytest.param({"quotas": {}}, "spec.children[1].name: is required", id="no-name"),
        pytest.param({"name": 3}, "spec.children[1].name: must be a text, not 3", id="number-for-a-name"),
        pytest.param(node("r"), "spec.children[1].name: a node cannot be its own parent", id="own-parent"),
        pytest.param(
            {"name": "a", "quotas": []}, "spec.children[1].quotas: must be an object, not a list", id="list"
        ),
        pytest.param(
            {"name": "a", "quotas": {"requests": "cpu"}},
            'spec.children[1].quotas.requests: must be an object, not "cpu"',
            id="text-for-requests",
        ),
        pytest.param(
            node("a", cpu=-1),
            "spec.children[1].quotas.requests.cpu: -1 is negative; "
            "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi",
            id="negative",
        ),
        pytest.param(
            node("a", memory="much"),
            "spec.children[1].quotas.requests.memory: 'much' is not a quantity; "
            "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi",
            id="unreadable",
        ),
        pytest.param(
            node("a", **{f"r{number}": 1 for number in range(65)}),
            "spec.children[1].quotas.requests: has 65 resources; at most 64 are allowed",
            id="too-many-resources",
        ),
        pytest.param(
            node("a", "yes", cpu=1),
            'spec.children[1].quotas.hardLimit: must be true or false, not "yes"',
            id="text-for-a-flag",
        ),
        pytest.param(
            node("good", cpu=2),
            'spec.children[1].name: QuotaSubtree kube-system/s declares "good" of tree "quota" differently',
            id="declared-twice",
        ),
    ],
)
def test_malformed_node_is_a_problem_and_the_others_count(child: object, message: str) -> None:
    document = subtree(node("good", cpu=1), child, node("last"), parent="r")

    assert read_quota_subtrees([document]) == QuotaTrees(
        (queue("good", "r", nominal=1000), queue("last", "r")),
        ("quota",),
        (Problem("kube-system/s", message),),
        () if child == node("good", cpu=2) else ("quota",),  # which is read, and not counted
    )


@pytest.mark.parametrize(
    ("document", "trees", "problem"),
    [
        pytest.param(3, (), Problem("/", "document: must be an object, not 3"), id="number"),
        pytest.param({}, (), Problem("/", "metadata.labels.tree: is required"), id="empty"),
        pytest.param(
            {"metadata": {"namespace": "n", "name": "s", "labels": {"app": "a"}}},
            (),
            Problem("n/s", "metadata.labels.tree: is required"),
            id="no-tree",
        ),
        pytest.param(
            subtree(node("a"), tree=""),
            (),
            Problem("kube-system/s", "metadata.labels.tree: must have 1 to 253 characters"),
            id="empty-tree",
        ),
        pytest.param(
            subtree(node("a"), parent=["r"]),
            ("quota",),
            Problem("kube-system/s", "spec.parent: must be a text, not a list"),
            id="list-for-a-parent",
        ),
        pytest.param(
            {**subtree(), "spec": {"children": {"name": "a"}}},
            ("quota",),
            Problem("kube-system/s", "spec.children: must be a list, not an object"),
            id="object-for-children",
        ),
    ],
)
def test_malformed_object_is_a_problem(document: object, trees: tuple[str, ...], problem: Problem) -> None:
    good = subtree(node("a", cpu=1), tree="other", name="z")

    assert read_quota_subtrees([good, document]) == QuotaTrees(
        (replace(queue("a", nominal=1000), name="other/a"),),
        tuple(sorted(("other", *trees))),
        (problem,),
        trees,
    )


def test_node_that_both_groups_declare_is_that_of_the_current_group() -> None:
    older = subtree(node("a", cpu=1), name="a", api_version="ibm.com/v1")

    assert read_quota_subtrees([older, subtree(node("a", cpu=2), name="b")]) == QuotaTrees(
        (queue("a", nominal=2000),),
        ("quota",),
        (
            Problem(
                "kube-system/a",
                'spec.children[0].name: QuotaSubtree kube-system/b declares "a" of tree "quota" differently',
            ),
        ),
    )


def test_copy_of_a_node_is_no_problem() -> None:
    copies = [subtree(node("a", cpu=1)), subtree(node("a", cpu="1000m"), api_version="ibm.com/v1")]

    assert read_quota_subtrees(copies) == QuotaTrees((queue("a", nominal=1000),), ("quota",))


TREES = ("quota_context", "quota_service")


@pytest.mark.parametrize(
    ("labels", "trees", "leaves"),
    [
        pytest.param(
            {"quota_context": "gold", "quota_service": "gold"},
            TREES,
            ("quota_context/gold", "quota_service/gold"),
            id="a-node-of-each-tree",
        ),
        pytest.param(
            {"quota_context": "bronze"},
            TREES,
            ("quota_context/bronze", "quota_service/default"),
            id="label-of-one-tree",
        ),
        pytest.param({}, TREES, ("quota_context/default", "quota_service/default"), id="no-labels"),
        pytest.param(
            {"app": "gold"}, TREES, ("quota_context/default", "quota_service/default"), id="unrelated-label"
        ),
        pytest.param(
            {"quota_context": "context-root2", "quota_service": "service-root2"},
            TREES,
            ("quota_context/context-root2", "quota_service/service-root2"),
            id="nodes-that-do-not-exist",
        ),
        pytest.param({"quota_context": ""}, TREES[:1], ("quota_context/",), id="empty-label-is-no-default"),
        pytest.param({"quota_context": "gold"}, (), (), id="no-trees"),
    ],
)
def test_labels_name_a_leaf_in_each_tree(
    labels: dict[str, str], trees: tuple[str, ...], leaves: tuple[str, ...]
) -> None:
    assert leaves_of(labels, trees) == leaves


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "namespace", "name", "labels", "tree", "spec", "parent", "children", "quotas"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.lists(ANYTHING, max_size=3), st.lists(ANYTHING, max_size=3))
def test_any_objects_are_read_and_every_problem_is_one_line(
    documents: list[Any], children: list[Any]
) -> None:
    found = read_quota_subtrees([*documents, subtree(*children, node("kept"), name="")])

    assert "quota/kept" in {each.name for each in found.queues}
    assert all(each.message.isprintable() and each.subtree.isprintable() for each in found.problems)
