"""The settings of the dispatcher in the help of `dispatcher run`: each with its variable, its values and its default.

The list is made from the model of the settings and the sentence below each field, so no setting can be missing. It is
read only for the help: other commands need neither the model nor its source.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

import click

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_SENTENCE: Final = re.compile(r"(.+?\.)(?:\s|$)")


class CommandWithSettings(click.Command):
    """A command whose `--help` lists all settings after the options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings below the options."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Settings, by their environment variables"):
            formatter.write_dl(list(settings_in_words()))


def settings_in_words() -> Iterator[tuple[str, str]]:
    """The variable of each setting, and what it decides; in the order of the model."""
    from dispatcher.settings import Settings, variable_of

    sentences = _first_sentences(Settings)
    for name, field in Settings.model_fields.items():
        yield variable_of(name), f"{sentences[name]}  [{'; '.join(_values(name, field))}]"


def _values(name: str, field: FieldInfo) -> Iterator[str]:
    default = "" if name == "database_url" else field.default
    yield f"default: {'none' if default in ('', None) else default}"
    if get_origin(field.annotation) is Literal:
        yield f"one of {', '.join(map(str, get_args(field.annotation)))}"
    for rule in field.metadata:
        for bound, words in _BOUNDS.items():
            if (value := getattr(rule, bound, None)) is not None:
                yield f"{words} {value}"


def _first_sentences(model: type) -> dict[str, str]:
    """The first sentence of the text below each field of a class."""
    found: dict[str, str] = {}
    body = next(
        each for each in ast.parse(inspect.getsource(model)).body if isinstance(each, ast.ClassDef)
    ).body
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                whole = " ".join(text.split())
                sentence = _SENTENCE.match(whole)
                found[name] = sentence[1] if sentence else whole
    return found
