"""What `explain` and `would` say where the leader's snapshot may not be read: to tenants, who see their own namespaces.

`explain` is answered by the views of schema `tenant`: the reason, the position and the advice, without holders and
changes, which would show other tenants' gangs. `would` plans nothing. It counts what the file asks for, and says what
the author may not create, and how many AppWrappers of its queue this role sees wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dispatcher.cli.pending import described
from dispatcher.cli.people.appwrapper_names import unknown_name
from dispatcher.cli.query import ask, note, why_not
from dispatcher.cli.screens.explanation import Document, of_views
from dispatcher.core.model.quantity import in_words
from dispatcher.errors import CommandFailed, MissingPackage, StoreForbidden
from dispatcher.text import counted

if TYPE_CHECKING:
    from dispatcher.cli.people.author import AuthorFacts
    from dispatcher.core.model.records.record import Record

ITS_VIEWS: Final = "so this is what its views say, without holders and changes"
NOT_PLANNED: Final = "so nothing is planned, and free capacity is not known"


def explained(
    url: str, name: str, namespace: str, refused: StoreForbidden | MissingPackage, *, is_uid: bool
) -> Document:
    """The newest AppWrapper of that name, or the one of that uid, by the views that this role may read."""
    found, _ = ask(url, lambda reports: reports.descriptions(name, namespace, is_uid=is_uid, most=1))
    if not found:
        known = () if is_uid else ask(url, lambda reports: reports.names(namespace))
        raise CommandFailed(unknown_name(name, namespace if not is_uid else "", known))
    tell(refused, ITS_VIEWS)
    return of_views(described(found[0]))


def tell(refused: StoreForbidden | MissingPackage, consequence: str) -> None:
    """Say in one line why the leader's snapshot is not read, and what follows."""
    note(f"{why_not(refused)}, {consequence}.")


def proposed(url: str, records: Sequence[Record], facts: Mapping[str, AuthorFacts]) -> list[Document]:
    """What is known of AppWrappers before their submission, with the facts of each by uid."""
    pending = ask(url, lambda reports: reports.queue())
    waiting = Counter(str(row["queue"]) for row in pending)
    return [_proposed(each, waiting[each.queue], facts.get(each.uid)) for each in records]


def _proposed(record: Record, waiting: int, author: AuthorFacts | None) -> Document:
    gang = record.gang
    value: dict[str, Any] = {
        "name": record.name,
        "namespace": record.namespace,
        "verdict": None,
        "queue": record.queue,
        "pending": waiting,
        "pods": gang.pods,
        "demand": dict(gang.demand),
        **(author.as_value() if author else {}),
    }
    asked = ", ".join(f"{name} {in_words(name, amount)}" for name, amount in sorted(gang.demand.items()))
    facts = (
        *(author.lines() if author else ()),
        f"asks for {asked or 'nothing'} in {counted(gang.pods, 'pod')}",
        f"{counted(waiting, 'AppWrapper')} that this role sees in queue {record.queue}",
    )
    return Document(value, f"{record.key} was not planned", facts)
