"""`dispatcher demand`: the requests of the pods that manifests will make, computed from the files alone.

The command contacts neither a cluster nor the database. It reads all files before it prints anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.command_line import epilog
from dispatcher.cli.options import DOCUMENTS, Output, files_option, kinds_option, output_option
from dispatcher.cli.query import note
from dispatcher.cli.screens.output import put, say, shown_as, terminal_width
from dispatcher.cli.screens.tables import Heading, table

if TYPE_CHECKING:
    from dispatcher.core.kinds.breakdown import Breakdown
    from dispatcher.core.kinds.registry import Kinds
    from dispatcher.core.model.gangs.gang import PodSet
    from dispatcher.core.model.resources import Resources

commands = click.Group()

_HEADINGS: Final = (
    Heading("OBJECT"),
    Heading("POD SET", wraps=True),
    Heading("PODS"),
    Heading("REQUESTS PER POD", wraps=True),
    Heading("NODES", wraps=True),
)
"""Only wide output has the last column."""
_EXIT_CODES: Final = {
    0: "the demand of every object is known",
    2: "the usage or the file of kinds is wrong, no object of the files makes\n"
    "     pods, or the demand of an object cannot be derived; no table is printed",
}


@commands.command(
    epilog=epilog(
        "kubectl aw demand train.yaml",
        "kubectl get rayjob train -o yaml | kubectl aw demand -",
        "kubectl aw demand train.yaml -o json | jq '.[].total.requests'",
        "kubectl aw demand jobs/ --kinds kinds.yaml",
        codes=_EXIT_CODES,
    )
)
@files_option("AppWrappers or with objects that they wrap")
@kinds_option
@output_option
def demand(files: Sequence[str], kinds: str, output: Output | None) -> None:
    """Show the requests of the pods of AppWrappers and jobs. Each pod set has a line, and there is a total.

    The command reads only the files: no cluster, no database. An object of a kind that makes no pods, such as a
    Service, counts nothing and has a line that says so. The command counts the containers that operators add. On stderr
    it names requests that depend on a cluster: the overhead of a RuntimeClass, the defaults of a LimitRange, the
    devices of resource claims. In JSON, cpu is in milli-units and all other resources are in base units.
    docs/demand.md has the rules.
    """
    from dispatcher.cli.files.documents import NO_PODS, read_kinds, read_objects, refused

    known = read_kinds(kinds)
    given = read_objects(files)
    found = [_breakdown(name, raw, known) for name, objects in given for raw in objects]
    if not any(each.makes_pods for each in found):
        raise refused(", ".join(name for name, _ in given), NO_PODS)
    if output in DOCUMENTS:
        say(shown_as([_as_value(each) for each in found], output))
        return
    put(_as_table(found, is_wide=output is Output.WIDE), output)
    for each in found:
        for sentence in (*each.warnings, *each.unknown):
            note(f"{each.kind}/{each.name}: {sentence}")


def _breakdown(file: str, raw: dict[str, Any], kinds: Kinds) -> Breakdown:
    from dispatcher.api.spec_errors import SpecError
    from dispatcher.core.kinds.breakdown import breakdown_of
    from dispatcher.errors import InvalidFile
    from dispatcher.text import name_of, one_line

    try:
        return breakdown_of(raw, kinds)
    except SpecError as error:
        metadata = raw.get("metadata")
        name = name_of(metadata.get("name")) if isinstance(metadata, dict) else ""
        title = f"{name_of(raw.get('kind')) or 'an object without a kind'}{name and f'/{name}'}"
        raise InvalidFile(one_line(f"{file}: {title}: {error}")) from error


def _as_value(found: Breakdown) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "name": found.name,
        "podSets": [_pod_set_as_value(each) for each in found.pod_sets],
        "total": {"pods": found.pods, "requests": dict(found.demand)},
        "makesPods": found.makes_pods,
        "warnings": list(found.warnings),
        "unknown": list(found.unknown),
    }


def _pod_set_as_value(pod_set: PodSet) -> dict[str, Any]:
    constraints = {
        "nodes": str(pod_set.nodes),
        "apart": list(pod_set.apart),
        "together": list(pod_set.together),
        "spread": list(map(str, pod_set.spread)),
        "away": sorted({label for label, _ in pod_set.away}),
        "near": sorted({label for label, _ in pod_set.near}),
    }
    return {
        "path": pod_set.path,
        "count": pod_set.count,
        "requests": dict(pod_set.requests),
        **{key: value for key, value in constraints.items() if value},
    }


def _as_table(found: list[Breakdown], *, is_wide: bool) -> str:
    columns = len(_HEADINGS) if is_wide else len(_HEADINGS) - 1
    rows = [row[:columns] for each in found for row in _rows(each)]
    return table(_HEADINGS[:columns], rows, None if is_wide else terminal_width())


def _rows(found: Breakdown) -> list[tuple[str, ...]]:
    title = f"{found.kind}/{found.name}"
    if not found.makes_pods:
        return [(title, "no pods", "0", "", "")]
    pod_sets = [
        (title, each.path, str(each.count), _in_words(each.requests), _constraints(each))
        for each in found.pod_sets
    ]
    return [*pod_sets, (title, "total", str(found.pods), _in_words(found.demand), "")]


def _in_words(requests: Resources) -> str:
    from dispatcher.core.model.quantity import in_words

    return ", ".join(f"{name}: {in_words(name, amount)}" for name, amount in sorted(requests.items()))


def _constraints(pod_set: PodSet) -> str:
    apart, together = _by("apart", pod_set.apart), _by("together", pod_set.together)
    away = _by("away from other templates", (label for label, _ in pod_set.away))
    near = _by("near other templates", (label for label, _ in pod_set.near))
    spread = map(str, pod_set.spread)
    return "; ".join(filter(None, (str(pod_set.nodes), apart, together, *spread, away, near)))


def _by(what: str, labels: Iterable[str]) -> str:
    named = sorted(set(labels))
    return f"{what} by {', '.join(named)}" if named else ""
