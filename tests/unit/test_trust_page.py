"""docs/trust.md names every key that is read from objects that a tenant or a member can write, and no other key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from dispatcher.api.names import HUB_CLUSTER
from tests.outside_keys import CHECKOUT, keys_in, keys_read_by, modules_below, source_of, takes_json

DOCS: Final = CHECKOUT / "docs"
PAGE: Final = (DOCS / "trust.md").read_text(encoding="utf-8")

DECODERS: Final = (
    "api.annotations",
    "api.appwrapper",
    "api.conditions",
    "api.mutable_spec",
    "api.validation",
    "controller.intake.appwrapper_informer",
    "controller.intake.attempt_search",
    "controller.intake.limits",
    "controller.members.cluster",
    "core.intake.labels",
    "core.intake.namespace_bounds",
    "core.intake.proposal",
    "core.intake.status_end",
    "core.kinds.asked",
    "core.kinds.breakdown",
    "core.kinds.demand",
    "core.kinds.drift",
    "core.kinds.fields",
    "core.kinds.manifest",
    "core.kinds.object_status",
    "core.kinds.pod_failure",
    "core.kinds.pods.affinity",
    "core.kinds.pods.pod_defaults",
    "core.kinds.pods.pod_requests",
    "core.kinds.pods.pod_rules",
    "core.kinds.pods.podsets",
    "core.kinds.provisioning_request",
    "core.kinds.template_fields",
    "core.model.resources",
    "core.status.conditions",
    "core.status.outlook",
    "core.status.queue_status",
    "kube.api_calls",
    "kube.discovery",
    "kube.objects.anchors",
    "kube.objects.appwrappers",
    "kube.objects.events",
    "kube.objects.live_pod_lister",
    "kube.objects.nodes",
    "kube.objects.object_client",
    "kube.objects.object_informers",
    "kube.objects.owner_resolver",
    "kube.objects.pod_failures",
    "kube.paging",
    "kube.questions",
    "kube.reflector",
)
"""The modules that read keys from objects that a tenant or a member can write."""

NOT_OUTSIDE: Final = {
    "api.document": "fields in the name of a caller, which is in one of the lists",
    "api.clusters.membercluster": "MemberClusters, which the operator writes",
    "api.clusters.potential": "pools, which the operator writes",
    "api.clusters.provisioning": "provisioning classes, which the operator writes",
    "controller.intake.priority_class_watch": "PriorityClasses of the hub, which the operator writes",
    "controller.members.member": "MemberClusters, which the operator writes",
    "controller.scheduling.queue_watch": "DispatchQueues and QuotaSubtrees, which the operator writes",
    "core.intake.wrapping": "a file of a command, which decides nothing for others",
    "core.kinds.declaration": "declarations of kinds, which the operator writes",
    "core.status.about": "the status that the dispatcher is about to write",
    "core.status.phases": "statuses that a command shows",
    "kube.client": "headers, and the kubeconfig that the operator gave",
    "kube.kubeconfig": "kubeconfigs, which the operator writes",
    "kube.library": "names of Python modules",
    "kube.user_client": "a command, which decides nothing for others",
    "kube.user_kubeconfig": "the kubeconfig of the user of a command",
}
"""The other modules that read keys or take JSON, and what they read."""

ROOMS: Final = ("kube", "api", "core/intake", "core/kinds", "core/status")
"""The rooms in which every module that reads keys is in one of the lists."""

_FIELD: Final = re.compile(r"`([^`]+)`")
_STEP: Final = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")


class Row(NamedTuple):
    """A row of a table: its fields by the steps to them, the modules that read them, and the other cells."""

    line: str
    fields: tuple[tuple[str, ...], ...]
    modules: tuple[str, ...]
    cells: tuple[str, ...]

    @property
    def steps(self) -> frozenset[str]:
        """Every key on the way to a field of the row."""
        return frozenset(chain.from_iterable(self.fields))

    @property
    def leaves(self) -> frozenset[str]:
        """The last keys of the fields of the row."""
        return frozenset(field[-1] for field in self.fields)


def rows() -> Iterator[Row]:
    """The rows of all tables whose first column is `field`."""
    is_inventory = False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            is_inventory = False
            continue
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if cells[0] == "field":
            is_inventory = True
        elif is_inventory and set(line) - set("|-"):
            fields = tuple(steps_of(path) for path in _FIELD.findall(cells[0]))
            yield Row(line[:100], fields, tuple(_FIELD.findall(cells[2])), cells)


def steps_of(path: str) -> tuple[str, ...]:
    """The keys of a path such as `metadata.labels[example.com/queue]` or `status.conditions[].type`."""
    return tuple(quoted or plain for quoted, plain in _STEP.findall(path))


ROWS: Final = tuple(rows())
NOT_FIELDS: Final = frozenset({HUB_CLUSTER})
"""Keys of the dispatcher's own dictionaries: the name of the hub among clusters."""

READ: Final = {module: keys_read_by(module) - NOT_FIELDS for module in DECODERS}


@pytest.mark.parametrize("module", DECODERS)
def test_page_names_every_key_that_a_decoder_reads(module: str) -> None:
    named = frozenset().union(*(row.steps for row in ROWS if module in row.modules))
    missing = sorted(READ[module] - named)
    assert not missing, f"{module} reads {missing}, which no row of docs/trust.md with `{module}` names"


def test_page_names_no_key_that_nobody_reads_any_more() -> None:
    extra = [
        f"{leaf}: none of {', '.join(row.modules)} reads it ({row.line}…)"
        for row in ROWS
        for leaf in sorted(row.leaves)
        if not any(leaf in READ.get(module, ()) for module in row.modules)
    ]
    assert not extra, "docs/trust.md names keys that are not read:\n" + "\n".join(extra)


def test_each_module_of_a_row_reads_a_field_of_the_row() -> None:
    idle = [
        f"{module} reads none of {sorted(row.leaves)} ({row.line}…)"
        for row in ROWS
        for module in row.modules
        if not row.leaves & READ.get(module, frozenset())
    ]
    assert not idle, "docs/trust.md names modules that do not read the fields:\n" + "\n".join(idle)


def test_every_row_has_fields_a_writer_readers_an_effect_and_a_bound() -> None:
    assert len(ROWS) > len(DECODERS)
    for row in ROWS:
        assert len(row.cells) == 5, row.line
        assert all((*row.cells, row.fields, row.modules)), row.line
        assert not _FIELD.sub("", row.cells[0]).replace(",", "").strip(), f"not a list of fields: {row.line}"
        assert not _FIELD.sub("", row.cells[2]).replace(",", "").strip(), f"not a list of modules: {row.line}"
        assert not any("*" in step for step in row.steps), f"a wildcard: {row.line}"


def test_every_module_of_the_page_and_of_the_lists_exists_and_is_a_decoder() -> None:
    named = set(chain.from_iterable(row.modules for row in ROWS))
    assert [each for each in sorted({*named, *DECODERS, *NOT_OUTSIDE}) if not source_of(each).is_file()] == []
    assert sorted(named - set(DECODERS)) == []
    assert [each for each in DECODERS if not READ[each]] == [], "decoders that read no key any more"
    assert sorted(set(DECODERS) & set(NOT_OUTSIDE)) == []


def test_every_module_that_takes_json_is_in_one_of_the_lists() -> None:
    readers = {each for room in ROOMS for each in modules_below(room) if keys_read_by(each)}
    takers = {each for room in ("kube", "controller") for each in modules_below(room) if takes_json(each)}
    new = sorted((readers | takers) - {*DECODERS, *NOT_OUTSIDE})
    assert not new, (
        f"{new} take JSON: add each to DECODERS and docs/trust.md, or to NOT_OUTSIDE with a reason"
    )
    gone = sorted(set(NOT_OUTSIDE) - readers - takers)
    assert not gone, f"{gone} read no JSON any more: remove each from NOT_OUTSIDE"


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]+)?\)", PAGE)
    assert "decisions/0018-seals-prove-attempts.md" in links
    assert [each for each in links if not Path(DOCS / each).exists()] == []


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ('raw.get("spec")', {"spec"}),
        ('raw["metadata"].pop("name", None)', {"metadata", "name"}),
        ('written["metadata"] = {}', set()),
        ('"deletionTimestamp" in metadata', {"deletionTimestamp"}),
        ('"quota" in str(error)', set()),
        ('KEY = "x-key"\nraw.get(KEY)', {"x-key"}),
        (
            "from dispatcher.api import names\nlabels.get(names.UID_LABEL)",
            {"dispatcher.codeflare.dev/appwrapper-uid"},
        ),
        ("from dispatcher.api.names import QUEUE_LABEL as L\nlabels[L]", {"dispatcher.codeflare.dev/queue"}),
        ('for field in ("a", "b"):\n    raw.get(field)', {"a", "b"}),
        ('any(raw.get(each) for each in ("a", "b"))', {"a", "b"}),
        ('match raw:\n    case {"name": str()}:\n        pass', {"name"}),
        ('Field(raw).at("metadata.labels")', {"metadata", "labels"}),
        ('log.get("nodes")', set()),
        ('def decode(mode: Literal["x"]) -> None: ...', set()),
    ],
)
def test_keys_are_found_however_they_are_read(source: str, keys: set[str]) -> None:
    assert keys_in(source) == keys
