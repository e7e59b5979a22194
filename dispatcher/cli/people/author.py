"""Facts about an AppWrapper before its submission: what its author may not create, and the defaults of its pods.

The author is the user of the kubeconfig. Access reviews store nothing, and everything else is read. A fact that the hub
does not give is named, and taken for absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from dispatcher import errors
from dispatcher.api.annotations import Submitter
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.names import PLURALS
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.intake.authorization import Access, WrappedKind, wrapped_kinds
from dispatcher.core.intake.proposal import Proposal
from dispatcher.core.kinds.pods.pod_defaults import MOST_CLASSES, NO_DEFAULTS, PodDefaults, runtime_classes
from dispatcher.kube.api_calls import ApiCalls
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.questions import am_i_allowed, read_default_requests, read_overhead

YOU: Final = Submitter("you")


class HubFacts(Struct, frozen=True):
    """Facts of the hub about one AppWrapper.

    `denied` has a sentence for each right that its author lacks, `unknown` one for each fact that the hub did not give.
    `defaults` are the defaults of its pods on the hub, None with the sentences `unread`.
    """

    denied: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    defaults: PodDefaults | None = NO_DEFAULTS
    unread: tuple[str, ...] = ()


class AuthorFacts(Struct, frozen=True):
    """Facts about one AppWrapper as they are shown.

    `denied` has a sentence for each right that its author lacks; None if the hub was not asked. `defaults` are the
    largest defaults of pods that change its demand, `smaller` those of clusters, by name, where its demand is smaller.
    """

    denied: tuple[str, ...] | None = None
    defaults: PodDefaults = NO_DEFAULTS
    smaller: Mapping[str, PodDefaults] = field(default_factory=dict)

    def as_value(self) -> dict[str, Any]:
        """The facts as fields of a JSON document; docs/explain.md has them."""
        return {
            **({} if self.denied is None else {"denied": list(self.denied)}),
            "podDefaults": {
                **_value_of(self.defaults),
                "clusters": {name: _value_of(each) for name, each in self.smaller.items()},
            },
        }

    def lines(self) -> Iterator[str]:
        """The facts for people."""
        for each in self.denied or ():
            yield f"{each}: where the rights of authors are checked, the AppWrapper is refused"
        if self.defaults.requests:
            yield f"with the LimitRange of its namespace, containers request {_amounts(self.defaults.requests)}"
        for name, of_class in self.defaults.overheads.items():
            yield f"with RuntimeClass {name}, each pod requests {_amounts(of_class)} more"
        for cluster, defaults in self.smaller.items():
            yield f"in cluster {cluster}, {' and '.join(_differences(defaults, self.defaults))}"


def _differences(defaults: PodDefaults, largest: PodDefaults) -> Iterator[str]:
    if defaults.requests != largest.requests:
        yield f"containers request {_amounts(defaults.requests)}"
    for name in largest.overheads:
        of_class = defaults.overheads.get(name, {})
        if of_class != largest.overheads[name]:
            yield f"RuntimeClass {name} adds {_amounts(of_class)}"


def _value_of(defaults: PodDefaults) -> dict[str, Any]:
    return {
        "requests": {name: str(each) for name, each in defaults.requests.items()},
        "overheads": {
            runtime_class: {name: str(each) for name, each in of_class.items()}
            for runtime_class, of_class in defaults.overheads.items()
        },
    }


def _amounts(quantities: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {each}" for name, each in sorted(quantities.items())) or "nothing"


class AuthorClient(Struct, frozen=True):
    """The hub as the author of AppWrappers sees it; each question is asked once."""

    client: ApiCalls
    discovery: Discovery
    _allowed: dict[Access, bool] = field(default_factory=dict)

    async def facts_of(self, proposal: Proposal) -> HubFacts:
        """The facts about an AppWrapper. Raises `ClusterError` if the hub does not answer."""
        record, spec = proposal.record, proposal.spec
        denied, unknown = list[str](), list[str]()
        access = Access(YOU, record.namespace, record.group, PLURALS[record.group], "create")
        if not await self._is_allowed(access):
            denied.append(access.denial())
        try:
            kinds = wrapped_kinds(spec)
        except SpecError as error:
            denied.append(str(error))
            kinds = ()
        for kind in kinds:
            asked = await self._access(kind, record.namespace)
            if asked is None:
                unknown.append(f"the hub does not serve {kind.kind} in version {kind.api_version}")
            elif not await self._is_allowed(asked):
                denied.append(asked.denial())
        unread = list[str]()
        defaults = await self._defaults(spec, record.namespace, unread)
        return HubFacts(tuple(denied), tuple(unknown), None if unread else defaults, tuple(unread))

    async def _access(self, kind: WrappedKind, namespace: str) -> Access | None:
        try:
            found = await self.discovery.find(kind.api_version, kind.kind)
        except errors.NotFound:
            return None
        return Access(YOU, namespace if found.namespaced else "", kind.group, found.plural, kind.verb)

    async def _is_allowed(self, access: Access) -> bool:
        if access not in self._allowed:
            self._allowed[access] = await am_i_allowed(self.client, access)
        return self._allowed[access]

    async def _defaults(self, spec: AppWrapperSpec, namespace: str, unread: list[str]) -> PodDefaults:
        requests: dict[str, object] = {}
        try:
            requests = await read_default_requests(self.client, namespace)
        except errors.Refused:
            unread.append(f"you may not read the LimitRanges of namespace {namespace}")
        overheads: dict[str, dict[str, object]] = {}
        for name in sorted(runtime_classes(spec))[:MOST_CLASSES]:
            try:
                overheads[name] = await read_overhead(self.client, name)
            except errors.Refused:
                unread.append(f"you may not read RuntimeClass {name}")
        return PodDefaults(requests, {name: each for name, each in overheads.items() if each})
