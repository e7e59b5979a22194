"""Reads the file of declared kinds, YAML or JSON; `core.kinds.declaration` has its fields."""

from __future__ import annotations

from pathlib import Path

import yaml

from dispatcher.cli.documents import LARGEST_FILE, Loader, documents_in, refused
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
        return Kinds(read_declarations(Entry(_document(file), "")))
    except DocumentError as error:
        raise refused(file, str(error)) from error


def _document(file: str) -> object:
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise refused(file, error.strerror or str(error)) from error
    [document] = documents_in(
        file,
        content,
        lambda written: [yaml.load(written, Loader=Loader)],  # noqa: S506  # a safe loader
        lambda mark: f"line {mark.line + 1}, column {mark.column + 1}",
    )
    return document
