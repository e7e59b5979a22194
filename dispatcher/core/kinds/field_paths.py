"""The paths of the fields of a template, without their values: whether a field is unknown depends on them alone."""

from __future__ import annotations

import hashlib


def digest_of_paths(template: object) -> bytes:
    """A digest of the fields of a JSON value: the same whatever the values and the order of keys; of any depth.

    A list of objects counts with its length, because the path of a field has the index of its item.
    """
    digest = hashlib.sha256()
    left = [template]
    while left:
        match left.pop():
            case dict() as fields:
                names = sorted(fields)
                digest.update(repr(names).encode(errors="backslashreplace"))
                left.extend(fields[name] for name in names)
            case list() as items if any(isinstance(each, dict | list) for each in items):
                digest.update(f"<{len(items)}>".encode())
                left.extend(items)
            case _:
                digest.update(b".")
    return digest.digest()
