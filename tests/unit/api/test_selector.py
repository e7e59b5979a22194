"""Label selectors: what they select, and how the mistakes in them are told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.api.selector import (
    EVERYTHING,
    LONGEST_SELECTOR,
    Requirement,
    Selector,
    SelectorOperator,
    parse_selector,
    selector_of,
)
from dispatcher.api.spec_errors import SpecError

ANNOTATION = "dispatcher.codeflare.dev/cluster-selector"
REMEDY = "Write requirements such as a=b, c!=d, e in (x,y), f notin (z), g or !h, separated by commas."


def one(key: str, operator: SelectorOperator, *values: str) -> Selector:
    return Selector((Requirement(key, operator, frozenset(values)),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", EVERYTHING, id="nothing"),
        pytest.param(" \t\r\n", EVERYTHING, id="blank"),
        pytest.param("a=b", one("a", SelectorOperator.IN, "b"), id="equal"),
        pytest.param("a == b", one("a", SelectorOperator.IN, "b"), id="equal-in-c"),
        pytest.param("a!=b", one("a", SelectorOperator.NOT_IN, "b"), id="not-equal"),
        pytest.param("a in (b, c,b)", one("a", SelectorOperator.IN, "b", "c"), id="one-of"),
        pytest.param("a notin(b,c)", one("a", SelectorOperator.NOT_IN, "b", "c"), id="none-of"),
        pytest.param("a", one("a", SelectorOperator.EXISTS), id="there"),
        pytest.param("! a", one("a", SelectorOperator.DOES_NOT_EXIST), id="not-there"),
        pytest.param("a=", one("a", SelectorOperator.IN, ""), id="empty-value"),
        pytest.param("a in ()", one("a", SelectorOperator.IN, ""), id="empty-list-is-an-empty-value"),
        pytest.param("a in (,b)", one("a", SelectorOperator.IN, "", "b"), id="empty-or"),
        pytest.param(
            "in in (in,notin)", one("in", SelectorOperator.IN, "in", "notin"), id="words-that-mean-themselves"
        ),
        pytest.param("notin", one("notin", SelectorOperator.EXISTS), id="word-for-a-label"),
        pytest.param(
            "topology.example.com/Zone_1=a.b-c_D",
            one("topology.example.com/Zone_1", SelectorOperator.IN, "a.b-c_D"),
            id="all-that-names-may-hold",
        ),
        pytest.param(
            "a=b,c!=d , e in (x,y),f notin (z),g,!h",
            Selector(
                (
                    Requirement("a", SelectorOperator.IN, frozenset({"b"})),
                    Requirement("c", SelectorOperator.NOT_IN, frozenset({"d"})),
                    Requirement("e", SelectorOperator.IN, frozenset({"x", "y"})),
                    Requirement("f", SelectorOperator.NOT_IN, frozenset({"z"})),
                    Requirement("g", SelectorOperator.EXISTS),
                    Requirement("h", SelectorOperator.DOES_NOT_EXIST),
                )
            ),
            id="all-at-once",
        ),
    ],
)
def test_selector_is_read_as_kubectl_reads_it(text: str, expected: Selector) -> None:
    assert parse_selector(text, "p") == expected


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", ["east", "west", "bare"]),
        ("region=east", ["east"]),
        ("region!=east", ["west", "bare"]),
        ("region in (east,west)", ["east", "west"]),
        ("region notin (east,north)", ["west", "bare"]),
        ("region", ["east", "west"]),
        ("!region", ["bare"]),
        ("region,gpu", ["west"]),
        ("gpu=", ["west"]),
        ("region=east,region=west", []),
    ],
)
def test_selector_selects(text: str, selected: list[str]) -> None:
    clusters = {"east": {"region": "east"}, "west": {"region": "west", "gpu": ""}, "bare": {"Region": "east"}}
    selector = parse_selector(text, "p")

    assert [name for name, labels in clusters.items() if selector.matches(labels)] == selected


def test_selectors_that_mean_the_same_are_the_same() -> None:
    texts = ("a in (b,c),d", " a in (c , b) ,d")

    assert len({parse_selector(text, "p") for text in texts}) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("a=b c", 'at character 5, expected ",", not "c"', id="no-comma"),
        pytest.param("a,", "at character 3, expected a label, not the end", id="nothing-after-a-comma"),
        pytest.param(",a", 'at character 1, expected a label, not ","', id="nothing-before-a-comma"),
        pytest.param("=b", 'at character 1, expected a label, not "="', id="no-label"),
        pytest.param("!", "at character 2, expected a label, not the end", id="not-what"),
        pytest.param("!!a", 'at character 2, expected a label, not "!"', id="not-not"),
        pytest.param("!a=b", 'at character 3, expected ",", not "="', id="not-equal-otherwise"),
        pytest.param("a==!b", 'at character 4, expected ",", not "!"', id="equal-to-not"),
        pytest.param("a in b", 'at character 6, expected "(", not "b"', id="no-list"),
        pytest.param("a in (b", 'at character 8, expected ",", not the end', id="list-without-an-end"),
        pytest.param("a in (b c)", 'at character 9, expected ",", not "c"', id="list-without-a-comma"),
        pytest.param("a within (b)", 'at character 3, expected ",", not "within"', id="no-such-word"),
        pytest.param(
            "a>1",
            'at character 1, expected a label such as region or example.com/region, not "a>1"',
            id="no-numbers-are-compared",
        ),
        pytest.param(
            "a\0",
            'at character 1, expected a label such as region or example.com/region, not "a\\u0000"',
            id="nul",
        ),
        pytest.param(
            "a=b/c",
            "at character 3, expected at most 63 letters, digits, '-', '_' and '.', not \"b/c\"",
            id="no-value",
        ),
        pytest.param(
            f"a={'b' * 64}",
            f"at character 3, expected at most 63 letters, digits, '-', '_' and '.', not \"{'b' * 64}\"",
            id="long-value",
        ),
    ],
)
def test_error_in_a_selector_names_the_annotation_and_the_remedy(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        selector_of({ANNOTATION: text}, ANNOTATION)
    assert (
        str(caught.value)
        == f'metadata.annotations["{ANNOTATION}"]: is no label selector: {problem}. {REMEDY}'
    )


def test_unmet_requirements_are_shown_as_they_could_be_written() -> None:
    selector = parse_selector("zone in (b, a),region=us,!spot,gpu,region!=eu,region", "p")
    unmet = selector.unmet({"region": "eu", "spot": ""})
    assert [str(each) for each in unmet] == [
        "zone in (a, b)",
        "region in (us)",
        "!spot",
        "gpu",
        "region notin (eu)",
    ]
    assert parse_selector(", ".join(map(str, unmet)), "p") == Selector(tuple(unmet))


def test_annotation_that_is_not_there_selects_everything() -> None:
    assert selector_of({"other": "a=b"}, ANNOTATION) == EVERYTHING
    assert selector_of({ANNOTATION: "a"}, ANNOTATION) == one("a", SelectorOperator.EXISTS)


def test_selector_that_is_too_long_is_refused_unread() -> None:
    longest = "a" + ",a" * (LONGEST_SELECTOR // 2 - 1)

    assert len(parse_selector(longest, "p").requirements) == LONGEST_SELECTOR // 2
    with pytest.raises(SpecError) as caught:
        parse_selector("=" * 2**18, "p")
    assert str(caught.value) == (
        "p: is 262144 characters long, of 4096 at most. "
        "Label the clusters so that a short selector finds them."
    )


@settings(max_examples=500, derandomize=True, deadline=None)
@given(st.text(st.sampled_from("ab=!(), inot/.-_\t\0é"), max_size=40))
def test_any_text_is_a_selector_or_an_error_in_one_line(text: str) -> None:
    try:
        parse_selector(text, "p").matches({"a": "b"})
    except SpecError as error:
        said = str(error)
        assert said.isprintable()
