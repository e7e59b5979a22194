"""The GPU map: who has which cells, how the nodes are sorted and bounded, and what the page says in words."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote

import pytest

from dispatcher.cli.people.node_report import NO_APPWRAPPER, SeenNode
from dispatcher.core.model.resources import Resources
from dispatcher.web.cells import CELL, COLOURS, MOST_CELLS, Run, colours_of
from dispatcher.web.gpu_map import (
    MOST_GANGS,
    MOST_NODES,
    Fits,
    GangColour,
    MapPage,
    NodeRow,
    map_page,
    pods_that_fit,
)
from dispatcher.web.node_reading import SeenNodes
from tests.unit.web.test_loopback import (
    HOSTILE,
    NOW,
    SAFE_TAGS,
    Browser,
    Tags,
    Told,
    ToldNodes,
    appwrapper,
    browser,
    nodes,
    seen_of,
    told,
)

__all__ = ["browser", "nodes", "told"]

GPU = "nvidia.com/gpu"
LONGEST = "n" * 253


def node(
    name: str,
    by_gang: dict[str, int] | None = None,
    *,
    cluster: str = "hub",
    state: str = "Ready",
    taints: tuple[str, ...] = (),
    gpus: int = 8,
    resource: str = GPU,
    all_pods: bool = True,
) -> SeenNode:
    """A node with the GPUs of each gang."""
    held = by_gang or {}
    free = Resources({resource: gpus - sum(held.values()), "cpu": 4000})
    return SeenNode(
        cluster,
        name,
        state,
        taints,
        Resources({resource: gpus, "cpu": 64000}),
        free if all_pods else None,
        {key: Resources({resource: count}) for key, count in held.items()},
        (),
    )


def page_of(*found: SeenNode, search: str = "", namespace: str = "") -> MapPage:
    return map_page(SeenNodes(NOW, found), namespace, search)


def names(page: MapPage) -> list[tuple[str, list[str]]]:
    """The nodes of each cluster, as they are shown."""
    return [(each.name, [row.name for row in each.nodes]) for each in page.clusters]


def test_cells_of_a_node_are_its_gangs_by_size_then_other_pods_then_free_gpus() -> None:
    page = page_of(node("gpu-1", {NO_APPWRAPPER: 1, "team-a/small": 2, "team-b/large": 3}))
    colour = {each.key: each.css for each in page.gangs}
    assert page.clusters[0].nodes == (
        NodeRow(
            "gpu-1",
            "Ready",
            is_hatched=False,
            gpus=8,
            free="2",
            holders="team-b/large 3, team-a/small 2, no AppWrapper 1",
            taints="",
            cells=(
                Run("gpu-1, Ready: team-b/large 3", colour["team-b/large"], 0, 3 * CELL),
                Run("gpu-1, Ready: team-a/small 2", colour["team-a/small"], 3 * CELL, 2 * CELL),
                Run("gpu-1, Ready: no AppWrapper 1", "no-appwrapper", 5 * CELL, CELL),
                Run("gpu-1, Ready: free 2", "free", 6 * CELL, 2 * CELL),
            ),
            width=8 * CELL,
        ),
    )


def test_gpus_that_pods_out_of_sight_may_hold_are_unknown_and_no_hole() -> None:
    page = page_of(node("dark", {"team-a/train": 3}, all_pods=False), node("full", {"team-a/train": 8}))
    assert names(page) == [("hub", ["full", "dark"])]
    dark = page.clusters[0].nodes[1]
    assert (dark.free, dark.holders) == ("unknown", "team-a/train 3, unknown")
    assert [(each.css, each.width // CELL) for each in dark.cells][1:] == [("unknown", 5)]
    assert page.fits == (Fits("hub", ("unknown",) * 4),)


def test_pods_that_request_more_gpus_than_there_are_leave_none() -> None:
    page = page_of(node("shrunk", {"team-a/train": 8}, gpus=4))
    (row,) = page.clusters[0].nodes
    assert (row.free, row.width) == ("-4", 8 * CELL)
    assert page.fits == (Fits("hub", ("0",) * 4),)


def test_node_of_many_gpus_has_a_bounded_row_and_all_of_them_in_words() -> None:
    (row,) = page_of(node("shared", {"team-a/train": 60}, gpus=10**9)).clusters[0].nodes
    assert row.width == MOST_CELLS * CELL
    assert (row.gpus, row.free) == (10**9, str(10**9 - 60))
    assert row.cells[-1].title == "shared, Ready: free 999999940"


@pytest.mark.parametrize(
    ("state", "is_hatched"), [("Ready", False), ("NotReady", True), ("Ready,cordoned", True)]
)
def test_nodes_that_are_cordoned_or_not_ready_are_hatched(state: str, is_hatched: bool) -> None:
    (row,) = page_of(node("gpu-1", state=state)).clusters[0].nodes
    assert row.is_hatched is is_hatched


def test_nodes_are_sorted_by_their_hole_then_by_name_in_each_cluster() -> None:
    page = page_of(
        node("c", {"a/x": 8}),
        node("b"),
        node("a"),
        node("d", {"a/x": 1}),
        node("e", cluster="east"),
        node("cpu-only", gpus=0),
    )
    assert names(page) == [("east", ["e"]), ("hub", ["a", "b", "d", "c"])]
    assert (page.seen, page.with_gpus, page.found) == (6, 5, 5)


FREE_3, FREE_8 = node("free-3", {"a/x": 5}), node("free-8")
TAINTED = node("tainted", taints=("team=a:NoSchedule",))


@pytest.mark.parametrize(
    ("found", "size", "pods"),
    [
        pytest.param([FREE_3, FREE_8], 1, 11, id="every-free-gpu"),
        pytest.param([FREE_3, FREE_8], 2, 5, id="a-pod-is-on-one-node"),
        pytest.param([FREE_3, FREE_8], 4, 2, id="smaller-holes-do-not-add-up"),
        pytest.param([FREE_3], 8, 0, id="none"),
        pytest.param([], 1, 0, id="no-node"),
        pytest.param([node("x", state="NotReady"), FREE_8], 8, 1, id="not-ready"),
        pytest.param([node("x", state="Ready,cordoned"), FREE_8], 8, 1, id="cordoned"),
        pytest.param([TAINTED, FREE_8], 8, 1, id="no-schedule"),
        pytest.param([node("x", taints=("gone:NoExecute",)), FREE_8], 8, 1, id="no-execute"),
        pytest.param([node("x", taints=("soft:PreferNoSchedule",)), FREE_8], 8, 2, id="prefer-no-schedule"),
        pytest.param([node("x", resource="amd.com/gpu")], 4, 2, id="another-vendor"),
        pytest.param([node("x", {"a/x": 9}), FREE_3], 1, 3, id="a-node-below-zero-takes-nothing-away"),
        pytest.param([node("x", all_pods=False), FREE_8], 1, None, id="unknown"),
        pytest.param([node("x", all_pods=False, state="NotReady"), FREE_8], 1, 8, id="unknown-where-none-go"),
    ],
)
def test_pods_fit_on_the_free_gpus_of_nodes_that_take_pods(
    found: list[SeenNode], size: int, pods: int | None
) -> None:
    assert pods_that_fit(found, size) == pods


def test_gang_fits_in_one_cluster_and_the_nodes_that_are_not_counted_are_named() -> None:
    page = page_of(FREE_3, node("e", cluster="east"), TAINTED, node("x", state="NotReady"), search="free-3")
    assert page.fits == (Fits("east", ("8", "4", "2", "1")), Fits("hub", ("3", "1", "0", "0")))
    assert page.not_counted == (
        "1 node cordoned or not ready; 1 node tainted NoSchedule or NoExecute, with 8 free GPUs"
    )


def test_colour_of_a_gang_depends_on_its_key_and_on_larger_gangs_alone() -> None:
    held = {f"team-a/gang-{number}": 100 - number for number in range(30)}
    found = colours_of(held)
    assert list(found) == list(held)[:COLOURS]
    assert sorted(found.values()) == list(range(COLOURS))
    assert colours_of(dict(reversed(held.items()))) == found
    assert {
        key: each for key, each in colours_of({**held, "team-b/tiny": 1}).items() if key in found
    } == found
    few = dict(list(held.items())[:5])
    assert colours_of(few) == {key: found[key] for key in few}


def test_colours_are_those_of_every_process() -> None:
    assert colours_of({"team-a/train": 8}) == {"team-a/train": 8}


def test_smaller_gangs_are_grey_and_the_legend_is_cut() -> None:
    gangs = {f"team-a/gang-{number:03}": 1 for number in range(MOST_GANGS + 1)}
    page = page_of(node("shared", gangs, gpus=len(gangs)))
    assert [each.css for each in page.gangs[COLOURS:]] == ["gang-more"] * (MOST_GANGS - COLOURS)
    assert (len(page.gangs), page.of_all_gangs) == (MOST_GANGS, MOST_GANGS + 1)


def test_search_leaves_colours_and_totals_as_they_are() -> None:
    found = (node("one", {"a/x": 4, "a/y": 1}), node("two", {"a/x": 8}), node("three", {"a/z": 2}))
    everything, searched = page_of(*found), page_of(*found, search="ONE")
    assert names(searched) == [("hub", ["one"])]
    assert searched.gangs == tuple(each for each in everything.gangs if each.key != "a/z")
    assert searched.gangs[0].gpus == 12


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", ["gpu-1", "gpu-2"]),
        ("PU-2", ["gpu-2"]),
        ("east", ["gpu-2"]),
        ("team-a/TRAIN", ["gpu-1"]),
        ("cordoned", ["gpu-2"]),
        ("no appwrapper", ["gpu-2"]),
        ("nothing", []),
    ],
)
def test_search_finds_nodes_by_name_cluster_gang_and_state(search: str, found: list[str]) -> None:
    page = page_of(
        node("gpu-1", {"team-a/train": 1}),
        node("gpu-2", {NO_APPWRAPPER: 1}, cluster="east", state="Ready,cordoned"),
        search=search,
    )
    assert sorted(row.name for each in page.clusters for row in each.nodes) == found


def test_many_nodes_are_cut_so_that_no_cluster_hides_another() -> None:
    large = [node(f"gpu-{number:04}", cluster="large") for number in range(MOST_NODES)]
    page = page_of(*large, node("z", {"a/x": 8}, cluster="small"))
    assert [(each.name, len(each.nodes), each.of_all) for each in page.clusters] == [
        ("large", MOST_NODES - 1, MOST_NODES),
        ("small", 1, 1),
    ]
    assert (page.shown, page.found) == (MOST_NODES, MOST_NODES + 1)


def test_gang_is_a_link_where_the_pages_have_its_namespace() -> None:
    held = {"team-a/train": 2, "team-b/hidden": 1}
    linked, hidden = page_of(node("a", held), namespace="team-a").gangs
    assert linked == GangColour("team-a/train", 2, linked.css, "team-a", "train")
    assert hidden == GangColour("team-b/hidden", 1, hidden.css)
    assert [each.namespace for each in page_of(node("a", held)).gangs] == ["team-a", "team-b"]


async def text_of(browser: Browser, path: str = "/map") -> str:
    if not browser.root:
        await browser.open()
    status, text = await browser.page(path)
    assert status == 200
    return text


async def test_page_has_the_map_its_table_and_its_links(browser: Browser, nodes: ToldNodes) -> None:
    nodes.seen = SeenNodes(
        NOW, (node("gpu-1", {"team-a/train": 3}), node("gpu-2", state="Ready,cordoned", all_pods=False))
    )
    text = await text_of(browser, "/queue")
    assert f'<a href="{browser.root}/map">GPU map</a>' in text
    text = await text_of(browser)
    assert "<title>gpu-1, Ready: team-a/train 3</title>" in text
    assert f'<a href="{browser.root}/appwrapper/team-a/train">team-a/train</a> 3' in text
    assert re.findall(r'<tr><th scope="row">gpu-1</th>(.*)</tr>', text) == [
        '<td>Ready</td><td class="number">8</td><td class="number">5</td><td>team-a/train 3</td><td></td>'
    ]
    for words in ("Cells are counts, not device numbers.", "Only free GPUs are counted", "1 node cordoned"):
        assert words in text


async def test_map_lists_appwrappers_with_its_nodes_alone(
    browser: Browser, told: Told, nodes: ToldNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.seen = SeenNodes(NOW, (node("gpu-1", {"team-a/train": 3}),))
    looks = list[None]()
    monkeypatch.setattr(told, "look", lambda: looks.append(None))
    assert '/appwrapper/team-a/train">team-a/train</a> 3' in await text_of(browser)
    assert looks == []


async def test_css_has_each_class_of_the_cells(browser: Browser) -> None:
    style = await text_of(browser, "/style.css")
    for each in ("free", "no-appwrapper", "gang-more", *(f"gang-{number}" for number in range(COLOURS))):
        assert f".{each} {{" in style


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (
            SeenNodes(NOW, (), ("The nodes of hub cannot be seen: nodes is forbidden",)),
            ("nodes is forbidden", "No node can be seen with these rights", "2026-11-01 12:00:00 UTC"),
        ),
        (SeenNodes(NOW, (node("a", gpus=0),)), ("None of the 1 nodes has GPUs.",)),
        (SeenNodes(), ("There is no map yet.", "Nothing has been read yet.")),
        (
            SeenNodes(NOW, (node("a"),), ("The pods and nodes of west cannot be seen",)),
            ("The pods and nodes of west cannot be seen", ">a</th>"),
        ),
    ],
    ids=["forbidden", "no-gpus", "not-read", "one-member-out-of-sight"],
)
async def test_page_says_what_cannot_be_seen(
    browser: Browser, nodes: ToldNodes, seen: SeenNodes, words: tuple[str, ...]
) -> None:
    nodes.seen = seen
    text = await text_of(browser)
    for each in words:
        assert each in text


async def test_page_without_a_match_says_so(browser: Browser, nodes: ToldNodes) -> None:
    nodes.seen = SeenNodes(NOW, (node("a"),))
    assert "No node with GPUs has “zebra”" in await text_of(browser, "/map?q=zebra")


async def test_names_of_others_are_text_in_the_map(browser: Browser, told: Told, nodes: ToldNodes) -> None:
    evil = appwrapper(HOSTILE, HOSTILE)
    told.seen = seen_of(evil)
    key = f"{HOSTILE}/{HOSTILE}"
    nodes.seen = SeenNodes(
        NOW,
        (
            node(
                HOSTILE, {key: 2, f"team-a/{LONGEST}": 1}, cluster=HOSTILE, state=HOSTILE, taints=(HOSTILE,)
            ),
            node(LONGEST, cluster=LONGEST),
        ),
        (HOSTILE,),
    )
    nodes.problem = HOSTILE
    for path in ("/map", f"/map?q={quote(HOSTILE)}"):
        text = await text_of(browser, path)
        tags = Tags()
        tags.feed(text)
        assert tags.tags <= SAFE_TAGS
        assert not [each for each in tags.attributes if each.startswith("on") or each == "style"]
        assert f">{HOSTILE}</th>" in unescape(text)
        assert "{{ 7 * 7 }}" in text
