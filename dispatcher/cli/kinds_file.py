"""Reads the file of declared kinds, YAML or JSON; `core.kinds.declaration` has its fields."""

from __future__ import annotations

from dispatcher.cli.documents import read_document, refused
from dispatcher.core.kinds.declaration import read_declarations
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.document import DocumentError, Entry


def read_kinds(file: str) -> Kinds:
    """The registry with the kinds that a file declares; the built-in kinds alone if `file` is empty.

    Raises `InvalidFile`, with one line that names the file and the place.
    """
    if not file:
        return BUILT_IN
    try:
        return Kinds(read_declarations(Entry(read_document(file), "")))
    except DocumentError as error:
        raise refused(file, str(error)) from error
