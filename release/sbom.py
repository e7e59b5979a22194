"""The bill of materials: the packages that the dispatcher runs with, as CycloneDX JSON.

Versions and hashes are those of requirements.lock, licences those of the installed metadata. Packages for development
are left out. What a package requires can depend on Python and the system; here they are those of the image.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMAGE = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
}
"""Python and system of the image, by which packages choose what they require."""

Project = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pinned:
    """A package of the lock: its version and the SHA-256 of each of its files."""

    version: str
    hashes: tuple[str, ...]


def render(project: Project, lock: str, made: datetime) -> str:
    """The bill of materials of a project, with the packages of `lock`; equal for equal arguments."""
    pinned = read_lock(lock)
    root = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        bom_ref=f"pkg:pypi/{project['name']}@{project['version']}",
        licenses=licences(project["license"]),
    )
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{root.bom_ref.value}\n{lock}\n{made}"))
    bom.metadata.timestamp = made
    bom.metadata.component = root
    asked = requirements_of(project)
    required = closure(asked)
    components = {name: component(name, pinned[name]) for name in required}
    for each in components.values():
        bom.components.add(each)
    bom.register_dependency(root, [components[name] for name, _ in parsed(asked)])
    for name, names in required.items():
        bom.register_dependency(components[name], [components[each] for each in names])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def requirements_of(project: Project) -> list[str]:
    """What the dispatcher itself is installed with: the requirements of its commands, and those of its server."""
    return [*project["dependencies"], *project["optional-dependencies"]["server"]]


def read_lock(lock: str) -> dict[str, Pinned]:
    """The packages of a lock by their canonical names, where it pins several versions the image's."""
    blocks = re.findall(
        r"^(\S+)==(\S+)(?: ; ([^\\]+?))? \\((?:\n    --hash=\S+(?: \\)?)+)", lock, re.MULTILINE
    )
    return {
        canonicalize_name(name): Pinned(version, tuple(re.findall(r"--hash=sha256:(\w+)", hashes)))
        for name, version, marker, hashes in blocks
        if not marker or Marker(marker).evaluate(IMAGE)
    }


def closure(requirements: Iterable[str]) -> dict[str, list[str]]:
    """All packages that these requirements bring, each with the packages that it requires itself."""
    found: dict[str, list[str]] = {}
    seen: set[tuple[str, str]] = set()
    left = list(parsed(requirements))
    while left:
        name, extras = left.pop()
        known = found.setdefault(name, [])
        for extra in ("", *sorted(extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            brought = list(parsed(metadata.requires(name) or (), extra))
            known += [each for each, _ in brought if each not in known]
            left += brought
    return {name: sorted(found[name]) for name in sorted(found)}


def parsed(requirements: Iterable[str], extra: str = "") -> Iterator[tuple[str, set[str]]]:
    """Names and extras of the requirements that hold in the image, with this extra."""
    for each in map(Requirement, requirements):
        if each.marker is None or each.marker.evaluate({**IMAGE, "extra": extra}):
            yield canonicalize_name(each.name), each.extras


def component(name: str, pinned: Pinned) -> Component:
    """A package as the bill lists it."""
    stated = metadata.metadata(name)
    url = PackageURL("pypi", None, name, pinned.version)
    return Component(
        name=name,
        version=pinned.version,
        type=ComponentType.LIBRARY,
        bom_ref=url.to_string(),
        purl=url,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in pinned.hashes],
        licenses=licences(stated["License-Expression"] or stated["License"] or classified(stated)),
    )


def classified(stated: metadata.PackageMetadata) -> str | None:
    """The name of the licence among the classifiers of a package, for packages that state it nowhere else."""
    found = [each for each in stated.get_all("Classifier", []) if each.startswith("License :: ")]
    return found[0].rpartition(" :: ")[2] if found else None


def licences(text: str | None) -> list[License]:
    """The licence that a package states, if it does; a text without an SPDX meaning is kept as a name."""
    return [LicenseFactory().make_from_string(text)] if text else []
