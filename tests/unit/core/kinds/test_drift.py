"""What somebody changed of what we wrote, told apart from what others are meant to write and from other spellings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dispatcher.core.kinds.drift import differences, edited, is_compared, message
from dispatcher.core.kinds.manifest import Anchor, build
from dispatcher.core.model.records.record import ObjectRef
from tests.builders import make_owner, make_ref, make_template, make_wrapped

Json = dict[str, Any]


def of(spec: object) -> Json:
    """An object of which nothing but the spec matters."""
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "x"}, "spec": spec}


def raycluster(**group: object) -> Json:
    """A RayCluster of one group of workers, as KubeRay has it."""
    workers = {"groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 4}
    return of({"workerGroupSpecs": [{**workers, **group}]})


def paths(written: object, found: object) -> tuple[str, ...]:
    return tuple(differences(of(written), of(found)))


# --- what is no drift --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "found"),
    [
        pytest.param({"image": "a"}, {"image": "a"}, id="the-same"),
        pytest.param({"image": "a"}, {"image": "a", "imagePullPolicy": "Always"}, id="a-default"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": {}}, id="defaults-at-every-level"),
        pytest.param({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, id="a-quantity"),
        pytest.param({"limits": {"cpu": 1}}, {"limits": {"cpu": "1"}}, id="a-quantity-written-as-a-number"),
        pytest.param({"requests": {"cpu": 0.5}}, {"requests": {"cpu": "500m"}}, id="a-quantity-and-a-float"),
        pytest.param({"requests": {"memory": "1024Mi"}}, {"requests": {"memory": "1Gi"}}, id="of-memory"),
        pytest.param({"overhead": {"cpu": "0.25"}}, {"overhead": {"cpu": "250m"}}, id="of-an-overhead"),
        pytest.param({"sizeLimit": "1024Ki"}, {"sizeLimit": "1Mi"}, id="of-a-volume"),
        pytest.param({"port": 80}, {"port": "80"}, id="a-number-that-became-a-string"),
        pytest.param({"port": "80"}, {"port": 80}, id="a-string-that-became-a-number"),
        pytest.param({"seconds": 5}, {"seconds": 5.0}, id="a-number-that-became-a-float"),
        pytest.param({"a": None}, {}, id="null-was-dropped"),
        pytest.param({"a": None}, {"a": "default"}, id="null-was-defaulted"),
        pytest.param({"a": {}}, {}, id="an-empty-object-was-dropped"),
        pytest.param({"a": []}, {}, id="an-empty-list-was-dropped"),
        pytest.param({"a": {"b": {"c": None}}}, {}, id="an-object-of-nothing-was-dropped"),
        pytest.param({"a": {}}, {"a": "odd"}, id="an-empty-object-owns-nothing"),
        pytest.param({"a": ""}, {}, id="an-empty-string-was-dropped"),
        pytest.param({"a": False, "b": 0}, {}, id="zeros-were-dropped"),
        pytest.param({"a": ["x", "y"]}, {"a": ["x", "y", "z"]}, id="an-entry-behind"),
        pytest.param({"a": ["x", "y"]}, {"a": ["v", "w", "x", "y"]}, id="entries-in-front"),
        pytest.param({"a": ["x"]}, {"a": ["w", "x", "y"]}, id="entries-on-both-sides"),
        pytest.param(
            {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
            {"tolerations": [{"key": "not-ready"}, {"key": "gpu", "operator": "Exists"}]},
            id="a-toleration-in-front",
        ),
        pytest.param(
            {"containers": [{"name": "main", "image": "a"}]},
            {"containers": [{"name": "proxy", "image": "b"}, {"name": "main", "image": "a", "tty": True}]},
            id="a-side-car-in-front",
        ),
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]},
            {"containers": [{"name": "b", "image": "2"}, {"name": "a", "image": "1"}]},
            id="another-order-of-what-has-names",
        ),
        pytest.param(
            {"volumeMounts": [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}]},
            {
                "volumeMounts": [
                    {"name": "token", "mountPath": "/t"},
                    {"name": "data", "mountPath": "/a"},
                    {"name": "data", "mountPath": "/b"},
                ]
            },
            id="mounts-of-one-volume-behind-another",
        ),
        pytest.param(
            {"volumeMounts": [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}]},
            {"volumeMounts": [{"name": "data", "mountPath": "/b"}, {"name": "data", "mountPath": "/a"}]},
            id="another-order-of-mounts-of-one-volume",
        ),
        pytest.param({"replicas": 1}, {"replicas": 5}, id="scaled"),
        pytest.param({"replicas": 1}, {}, id="replicas-left-to-an-autoscaler"),
        pytest.param(
            {"parallelism": 1, "completions": 1}, {"parallelism": 3, "completions": 3}, id="of-a-job"
        ),
        pytest.param({"suspend": True}, {"suspend": False}, id="started-by-kueue"),
        pytest.param({"a": {"b": [{"replicas": 2}]}}, {"a": {"b": [{"replicas": 0}]}}, id="somewhere-inside"),
    ],
)
def test_it_is_no_drift(written: Json, found: Json) -> None:
    assert paths(written, found) == ()


def test_ray_autoscaler_writes_how_many_workers_and_which_are_to_go() -> None:
    scaled = raycluster(replicas=3, scaleStrategy={"workersToDelete": ["pod-a"]})
    written = raycluster(scaleStrategy={"workersToDelete": ["pod-b"]})
    assert tuple(differences(written, scaled)) == ()


def test_status_is_not_ours() -> None:
    written = {**of({}), "status": {"phase": "New"}}
    assert tuple(differences(written, {**of({}), "status": {"phase": "Ready"}})) == ()


def test_other_metadata_is_its_authors_to_change() -> None:
    written = make_template(name="x", labels={"team": "a"}, annotations={"note": "mine"})
    found = copy.deepcopy(built(written))
    found["metadata"]["labels"]["team"] = "b"
    found["metadata"]["annotations"]["note"] = "yours"
    found["metadata"]["finalizers"] = ["example.com/slow"]
    assert tuple(differences(built(written), found)) == ()


# --- what is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "found", "drift"),
    [
        pytest.param({"image": "a"}, {"image": "b"}, ["spec.image"], id="a-value"),
        pytest.param({"image": "a"}, {}, ["spec.image"], id="a-field-that-is-gone"),
        pytest.param({"image": "a"}, {"image": None}, ["spec.image"], id="a-field-that-is-null"),
        pytest.param({"a": {"b": 1}}, {}, ["spec.a"], id="an-object-that-is-gone"),
        pytest.param({"a": {"b": 1}}, {"a": 1}, ["spec.a"], id="no-object-any-more"),
        pytest.param({"a": [1]}, {"a": {"b": 1}}, ["spec.a"], id="no-list-any-more"),
        pytest.param({"a": 1}, {"a": [1]}, ["spec.a"], id="a-list-now"),
        pytest.param({"a": 0}, {"a": 1}, ["spec.a"], id="no-zero-any-more"),
        pytest.param({"a": ""}, {"a": "b"}, ["spec.a"], id="empty-no-more"),
        pytest.param({"a": True}, {"a": False}, ["spec.a"], id="a-flag"),
        pytest.param({"a": True}, {}, ["spec.a"], id="a-flag-that-is-gone"),
        pytest.param({"a": True}, {"a": 1}, ["spec.a"], id="one-is-not-true"),
        pytest.param({"a": "1"}, {"a": True}, ["spec.a"], id="nor-is-a-string"),
        pytest.param(
            {"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, ["spec.limits.cpu"], id="a-quantity"
        ),
        pytest.param({"limits": {"cpu": "1"}}, {}, ["spec.limits"], id="limits-taken-away"),
        pytest.param(
            {"limits": {"cpu": "x"}}, {"limits": {"cpu": "y"}}, ["spec.limits.cpu"], id="no-quantity"
        ),
        pytest.param(
            {"value": "1000m"}, {"value": "1"}, ["spec.value"], id="what-only-looks-like-a-quantity"
        ),
        pytest.param({"value": "1"}, {"value": "1.0"}, ["spec.value"], id="another-string"),
        pytest.param({"a": ["x", "y"]}, {"a": ["x", "z"]}, ["spec.a[1]"], id="an-entry"),
        pytest.param({"a": ["x", "y"]}, {"a": ["y"]}, ["spec.a[0]", "spec.a[1]"], id="an-entry-less"),
        pytest.param({"a": ["x", "y"]}, {"a": ["y", "x"]}, ["spec.a[0]", "spec.a[1]"], id="another-order"),
        pytest.param({"a": ["x"]}, {"a": ["z", "y"]}, ["spec.a[0]"], id="an-entry-and-one-more"),
        pytest.param(
            {"a": [{"b": 1}]},
            {"a": [{"c": 1}, {"b": 1, "default": 1}]},
            ["spec.a[0].b"],
            id="entries-in-front-of-those-that-are-changed-as-well",
        ),
        pytest.param({"a": [{}]}, {"a": []}, ["spec.a[0]"], id="an-entry-that-says-nothing-and-is-gone"),
        pytest.param(
            {"containers": [{"name": "main", "image": "a"}]},
            {"containers": [{"name": "proxy"}, {"name": "main", "image": "b"}]},
            ["spec.containers[0].image"],
            id="by-its-place-in-what-was-written",
        ),
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]},
            {"containers": [{"name": "b", "image": "2"}]},
            ["spec.containers[0]"],
            id="a-container-that-is-gone",
        ),
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]},
            {"containers": [{"name": "z", "image": "1"}, {"name": "b", "image": "2"}]},
            ["spec.containers[0].name"],
            id="a-container-renamed",
        ),
        pytest.param(
            {"groups": [{"groupName": "a", "min": 1}, {"groupName": "b", "min": 1}]},
            {"groups": [{"groupName": "b", "min": 2}, {"groupName": "a", "min": 1}]},
            ["spec.groups[1].min"],
            id="a-group-of-workers",
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
            ["spec.env[0].value"],
            id="a-variable-that-is-set-once-more-the-last-counts",
        ),
        pytest.param(
            {"args": [["a"], ["b"]]}, {"args": [["a"], ["c"]]}, ["spec.args[1][0]"], id="lists-of-lists"
        ),
        pytest.param(
            {"replicas": "1"}, {"replicas": "2"}, ["spec.replicas"], id="what-only-sounds-like-a-count"
        ),
        pytest.param({"replicas": True}, {"replicas": False}, ["spec.replicas"], id="nor-is-a-flag-a-count"),
        pytest.param({"suspend": "yes"}, {"suspend": "no"}, ["spec.suspend"], id="nor-a-word-a-flag"),
        pytest.param({"odd.key/x": 1}, {"odd.key/x": 2}, ['spec["odd.key/x"]'], id="an-odd-key"),
    ],
)
def test_it_is_drift(written: Json, found: Json, drift: list[str]) -> None:
    assert paths(written, found) == tuple(drift)


@pytest.mark.parametrize("field", ["minReplicas", "maxReplicas", "groupName"])
def test_bounds_of_the_ray_autoscaler_are_the_users(field: str) -> None:
    assert tuple(differences(raycluster(), raycluster(**{field: 3}))) == (
        f"spec.workerGroupSpecs[0].{field}",
    )


def test_every_other_part_at_the_top_is_ours() -> None:
    written = {"kind": "ConfigMap", "data": {"a": "1", "replicas": "1"}, "immutable": True}
    found = {"kind": "ConfigMap", "data": {"a": "2", "replicas": "2"}}
    assert tuple(differences(written, found)) == ("data.a", "data.replicas", "immutable")


def test_entries_before_those_of_a_list_without_names_are_looked_through_only_so_far() -> None:
    written = {"args": ["serve"]}
    assert paths(written, {"args": ["x"] * 20 + ["serve"]}) == ()
    assert paths(written, {"args": ["x"] * 21 + ["serve"]}) == ("spec.args[0]",)


def test_only_the_first_thousand_differences_are_looked_for() -> None:
    found = paths({"args": ["a"] * 300_000}, {"args": ["b"] * 300_000})
    assert found == tuple(f"spec.args[{index}]" for index in range(1000))


def test_lists_within_lists_are_compared_in_no_more_than_reasonable_time() -> None:
    written: object = "a"
    found: object = "b"
    for _ in range(90):
        written, found = [written], [found]
    assert paths(written, found) == ("spec" + "[0]" * 90,)


# --- our marks ---------------------------------------------------------------------------------------------


def built(template: Json) -> Json:
    return build(make_wrapped(template), make_owner())


@pytest.mark.parametrize(
    ("part", "mark", "path"),
    [
        ("labels", "dispatcher.codeflare.dev/attempt", 'metadata.labels["dispatcher.codeflare.dev/attempt"]'),
        ("labels", "appwrapper.mcad.ibm.com", 'metadata.labels["appwrapper.mcad.ibm.com"]'),
        (
            "labels",
            "workload.codeflare.dev/appwrapper",
            'metadata.labels["workload.codeflare.dev/appwrapper"]',
        ),
        ("labels", "resourceName", "metadata.labels.resourceName"),
        (
            "annotations",
            "dispatcher.codeflare.dev/item",
            'metadata.annotations["dispatcher.codeflare.dev/item"]',
        ),
    ],
)
@pytest.mark.parametrize("value", ["other", None])
def test_each_of_our_marks_is_ours(part: str, mark: str, path: str, value: str | None) -> None:
    found = copy.deepcopy(built(make_template(name="x")))
    found["metadata"][part][mark] = value
    assert tuple(differences(built(make_template(name="x")), found)) == (path,)


def test_pods_bear_our_labels_too() -> None:
    template = {"kind": "Job", "metadata": {"name": "x"}, "spec": {"template": make_template()}}
    written = built({"apiVersion": "batch/v1", **template})
    found = copy.deepcopy(written)
    del found["spec"]["template"]["metadata"]["labels"]["dispatcher.codeflare.dev/appwrapper-uid"]
    assert tuple(differences(written, found)) == (
        'spec.template.metadata.labels["dispatcher.codeflare.dev/appwrapper-uid"]',
    )


def test_hub_that_made_an_object_may_have_been_another_before_its_database_was_lost() -> None:
    found = build(make_wrapped(make_template(name="x")), make_owner(hub_id="before"))
    assert tuple(differences(built(make_template(name="x")), found)) == ()


@pytest.mark.parametrize(
    ("owner", "drift"),
    [
        pytest.param(make_owner(), (), id="the-appwrapper"),
        pytest.param(
            make_owner(anchor=Anchor("appwrapper-uid-of-aw-1", "u")), (), id="its-anchor-in-a-member"
        ),
        pytest.param(make_owner(uid="other"), ("metadata.ownerReferences",), id="another-appwrapper"),
    ],
)
def test_owner_references_of_the_dispatcher_are_no_drift(owner: Any, drift: tuple[str, ...]) -> None:  # noqa: ANN401
    written, found = built(make_template(name="x")), built(make_template(name="x"))
    found["metadata"]["ownerReferences"] = [owner.reference()]
    assert tuple(differences(written, found)) == drift


def test_object_that_was_set_free_is_drift() -> None:
    found = built(make_template(name="x"))
    del found["metadata"]["ownerReferences"]
    assert tuple(differences(built(make_template(name="x")), found)) == ("metadata.ownerReferences",)


def test_secrets_are_not_compared_and_all_else_is() -> None:
    kinds = [("", "Secret"), ("", "ConfigMap"), ("example.com", "Secret")]
    assert [is_compared(*kind) for kind in kinds] == [False, True, True]


# --- since it was made -------------------------------------------------------------------------------------

WRITTEN = of({"image": "a", "unknown": 1, "tag": "x"})
AS_MADE = of({"image": "mirror/a", "tag": "x"})
"""A webhook has changed the image, and a field that its kind does not know was dropped."""


@pytest.mark.parametrize(
    ("found", "since", "without_knowing"),
    [
        pytest.param({"image": "mirror/a", "tag": "x"}, (), ("spec.image",), id="as-it-was-made"),
        pytest.param({"image": "mirror/b", "tag": "x"}, ("spec.image",), ("spec.image",), id="changed-again"),
        pytest.param({"image": "a", "tag": "x"}, (), (), id="as-it-was-written"),
        pytest.param(
            {"image": "mirror/a", "tag": "x", "unknown": 2},
            ("spec.unknown",),
            ("spec.image", "spec.unknown"),
            id="what-was-dropped-is-there-now",
        ),
        pytest.param(
            {"image": "mirror/a", "tag": "y"}, ("spec.tag",), ("spec.image", "spec.tag"), id="changed"
        ),
        pytest.param({"image": "mirror/a"}, ("spec.tag",), ("spec.image",), id="taken-away"),
    ],
)
def test_difference_since_the_creation_is_no_edit(
    found: Json, since: tuple[str, ...], without_knowing: tuple[str, ...]
) -> None:
    assert edited(WRITTEN, of(found), differences(WRITTEN, AS_MADE)) == since
    assert edited(WRITTEN, of(found)) == without_knowing


def test_differences_give_the_present_value_of_each_field() -> None:
    assert differences(WRITTEN, AS_MADE) == {"spec.image": "mirror/a", "spec.unknown": None}


# --- how it is told ----------------------------------------------------------------------------------------

RAY = make_ref(0, name="ray")
JOB = make_ref(1, "Job", name="driver")


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        pytest.param([], "", id="nothing-to-look-at"),
        pytest.param([(RAY, ()), (JOB, ())], "", id="nothing-changed"),
        pytest.param([(RAY, ("spec.a",))], "RayCluster default/ray: spec.a was changed", id="one"),
        pytest.param(
            [(RAY, ("spec.a", "spec.b"))], "RayCluster default/ray: spec.a, spec.b were changed", id="two"
        ),
        pytest.param(
            [(RAY, ("a", "b", "c", "d", "e"))],
            "RayCluster default/ray: a, b, c and 2 more were changed",
            id="many",
        ),
        pytest.param(
            [(RAY, ("a",)), (JOB, ("b",))],
            "RayCluster default/ray: a was changed; Job default/driver: b was changed",
            id="of-two-objects",
        ),
        pytest.param(
            [(RAY, ("a\nb",))], "RayCluster default/ray: a\\nb was changed", id="a-key-over-two-lines"
        ),
    ],
)
def test_edits_are_named_in_a_line(edits: list[tuple[ObjectRef, tuple[str, ...]]], told: str) -> None:
    assert message(edits) == told


# -----------------------------------------------------------------------------------------------------------
# Whatever is written: more of it is no drift, and nor is another spelling; a change of any leaf is, and is
# named.


def drawn_paths(written: object, found: object) -> tuple[str, ...]:
    """What differs in the specs of two objects of which nothing else matters."""
    return tuple(differences({"spec": written}, {"spec": found}))


KEYS = st.sampled_from(["image", "env", "spec", "x-y", "name"])
SCALARS = st.one_of(st.booleans(), st.integers(-5, 5), st.sampled_from(["", "a", "1", "500m", "1Gi"]))


def named(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Json]]:
    """Entries that have names, such as containers."""
    fields = st.dictionaries(st.sampled_from(["image", "env"]), values, max_size=2)
    return st.dictionaries(st.sampled_from("abcd"), fields, min_size=1, max_size=3).map(
        lambda by_name: [{"name": name, **entry} for name, entry in by_name.items()]
    )


SPECS = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda values: st.one_of(
            st.dictionaries(KEYS, values, max_size=3), named(values), st.lists(SCALARS, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)
"""What somebody might write; none of it is for others to change."""

ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda values: st.one_of(
        st.lists(values, max_size=3), st.dictionaries(st.text(max_size=3), values, max_size=3)
    ),
    max_leaves=10,
)


def has_names(entries: list[Any]) -> bool:
    return bool(entries) and all(isinstance(each, Mapping) and "name" in each for each in entries)


def defaulted(value: Any, draw: st.DataObject) -> Any:  # noqa: ANN401
    """As the API server, webhooks and operators may make of it: more of everything, and nothing less or other."""
    if isinstance(value, Mapping):
        more = draw.draw(st.dictionaries(st.sampled_from(["default", "other"]), SCALARS, max_size=1))
        kept = {key: each for key, each in value.items() if each not in ({}, []) or draw.draw(st.booleans())}
        return {**more, **{key: defaulted(each, draw) for key, each in kept.items()}}
    if isinstance(value, list) and has_names(value):
        entries = [defaulted(each, draw) for each in value]
        side_cars = draw.draw(st.lists(st.sampled_from(["side", "car"]), unique=True))
        for name in side_cars:
            entries.insert(draw.draw(st.integers(0, len(entries))), {"name": name})
        return entries
    return value


def leaves(value: Any, at: str) -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401
    """Each leaf: its path, what it is in, and where."""
    steps = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, each in steps:
        path = f"{at}[{key}]" if isinstance(key, int) else f'{at}["{key}"]' if "-" in key else f"{at}.{key}"
        if isinstance(each, Mapping | list):
            yield from leaves(each, path)
        else:
            yield path, value, key


def other(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 100
        case _:
            return f"{value}-changed"


@given(SPECS, st.data())
def test_defaulting_is_never_drift(spec: Json, draw: st.DataObject) -> None:
    assert drawn_paths(spec, defaulted(spec, draw)) == ()


@given(SPECS, st.data())
def test_change_of_any_leaf_is_drift_and_names_it(spec: Json, draw: st.DataObject) -> None:
    edit = copy.deepcopy(spec)
    every = list(leaves(edit, "spec"))
    assume(every)
    path, holder, key = draw.draw(st.sampled_from(every))
    holder[key] = other(holder[key])

    told = drawn_paths(spec, defaulted(edit, draw))

    if key == "name":  # then it may be another entry that stands in its place now
        entry = path.removesuffix(".name")
        assert told
        assert all(each.startswith(entry) for each in told)
    else:
        assert told == (path,)


@given(SPECS, st.data())
def test_leaf_that_is_taken_away_is_drift_unless_it_said_nothing(spec: Json, draw: st.DataObject) -> None:
    edit = copy.deepcopy(spec)
    every = [each for each in leaves(edit, "spec") if isinstance(each[1], dict) and each[2] != "name"]
    assume(every)
    path, holder, key = draw.draw(st.sampled_from(every))
    said = holder.pop(key)

    told = drawn_paths(spec, defaulted(edit, draw))

    if said:  # what it was in may be left out as well if it was all there was
        (whole,) = told
        assert path.startswith(whole)
    else:
        assert told == ()


MILLIS = st.integers(0, 10**9)


def spellings(millis: int) -> list[object]:
    """One amount as the API server and people write it."""
    whole = [millis // 1000, str(millis // 1000)] if millis % 1000 == 0 else []
    return [f"{millis}m", f"{millis}e-3", f"{millis * 1000}u", str(float(Fraction(millis, 1000))), *whole]


@given(MILLIS, st.data())
def test_another_spelling_of_a_quantity_is_no_drift(millis: int, draw: st.DataObject) -> None:
    spelling = st.sampled_from(spellings(millis))
    written, found = ({"limits": {"x": draw.draw(spelling)}} for _ in "12")
    assert drawn_paths(written, found) == ()


@given(MILLIS, MILLIS, st.data())
def test_another_quantity_is_drift_however_both_are_spelled(one: int, two: int, draw: st.DataObject) -> None:
    assume(one != two)
    written, found = ({"limits": {"x": draw.draw(st.sampled_from(spellings(each)))}} for each in (one, two))
    assert drawn_paths(written, found) == ("spec.limits.x",)


@given(ANYTHING, ANYTHING)
def test_nothing_that_is_written_or_found_is_too_odd(written: object, found: object) -> None:
    assert drawn_paths(written, written) == ()
    drift = drawn_paths(written, found)
    assert drift == () or written != found
