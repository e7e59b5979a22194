"""The keys that a module reads from objects of JSON, found in its source by `ast`.

A key is read by `.get` or `.pop`, by a subscript, by `in`, by a pattern of `match`, or by one of the `READERS`. It may
be a text, a constant of the module or of an imported module, or a variable of a loop over such constants. A module is
read in one pass over its syntax tree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

CHECKOUT: Final = Path(__file__).parents[1]
PACKAGE: Final = CHECKOUT / "dispatcher"

READERS: Final = frozenset(
    {"_amounts", "_mapping", "_object", "_text", "_texts", "at", "child", "object_of", "text"}
)
"""Functions and methods whose text arguments are keys, or dotted paths of keys."""

_KEY: Final = re.compile(r"[A-Za-z][\w./-]*")

Constants: TypeAlias = Mapping[str, frozenset[str]]
_NOTHING: Final = frozenset[str]()


def source_of(module: str) -> Path:
    """The file of a module, which is named below the package: `kube.objects.nodes`."""
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


@cache
def keys_read_by(module: str) -> frozenset[str]:
    """The keys that a module of the package reads."""
    return keys_in(source_of(module).read_text(encoding="utf-8"))


def keys_in(source: str) -> frozenset[str]:
    """The keys that a source reads."""
    tree = ast.parse(source)
    return frozenset(key for key in _keys(tree, _constants(tree)) if _KEY.fullmatch(key))


def takes_json(module: str) -> bool:
    """True if a function of the module has a parameter whose type names `Json`."""
    source = source_of(module).read_text(encoding="utf-8")
    if "Json" not in source:
        return False  # most modules are not parsed
    tree = ast.parse(source)
    arguments = (each for node in ast.walk(tree) if isinstance(node, ast.arg) for each in [node.annotation])
    return any(
        isinstance(name, ast.Name) and name.id == "Json"
        for each in arguments
        if each is not None
        for name in ast.walk(each)
    )


def modules_below(folder: str) -> Iterator[str]:
    """The modules below a folder of the package, named as in `keys_read_by`."""
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        yield ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def _keys(node: ast.AST, known: Constants) -> Iterator[str]:
    """The keys read in a part of a syntax tree, as deep as source is nested."""
    match node:
        case ast.For(target=ast.Name(id=name), iter=over):
            known = {**known, name: _texts(over, known)}
        case ast.GeneratorExp() | ast.ListComp() | ast.SetComp() | ast.DictComp():
            for loop in node.generators:
                if isinstance(loop.target, ast.Name):
                    known = {**known, loop.target.id: _texts(loop.iter, known)}
        case ast.Call(func=ast.Attribute(value=receiver, attr="get" | "pop"), args=[first, *_]):
            if not _is_log(receiver):
                yield from _texts(first, known)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=arguments) if name in READERS:
            for each in arguments:
                yield from (key for path in _texts(each, known) for key in _steps(path))
        case ast.Subscript(value=there, ctx=ast.Load(), slice=key) if not _is_of_log(there):
            yield from _texts(key, known) if not isinstance(key, ast.Tuple) else ()
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[there]):
            if _may_be_object(there) and not _texts(there, known):
                yield from _texts(key, known)
        case ast.MatchMapping(keys=keys):
            for each in keys:
                yield from _texts(each, known)
    annotation = getattr(node, "annotation", None) if isinstance(node, ast.AnnAssign | ast.arg) else None
    for child in ast.iter_child_nodes(node):
        if child is not annotation:
            yield from _keys(child, known)


def _is_log(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "log"


def _is_of_log(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and _is_log(node.value)


def _may_be_object(node: ast.expr) -> bool:
    """True unless `in` looks for a part of a text, or for one of some texts."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "get"
    return isinstance(node, ast.Name | ast.Attribute | ast.BoolOp)


def _steps(path: str) -> list[str]:
    return [path] if "/" in path else path.split(".")


def _constants(tree: ast.Module) -> Constants:
    """The texts of a module's own constants, and of those that it imports from the package."""
    known: dict[str, frozenset[str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("dispatcher"):
            continue
        for each in node.names:
            name = each.asname or each.name
            if each.name.strip("_").isupper():
                known[name] = _exported(node.module or "").get(each.name, _NOTHING)
            else:
                of_module = _exported(f"{node.module}.{each.name}")
                known |= {f"{name}.{key}": texts for key, texts in of_module.items()}
    return _with_own(known, tree)


@cache
def _exported(module: str) -> Constants:
    """The constants of a module, by its whole name; none if there is no such module."""
    path = source_of(module.removeprefix("dispatcher."))
    return _constants(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _with_own(known: Constants, tree: ast.Module) -> Constants:
    found = dict(known)
    for name, value in _assigned(tree):
        if texts := _texts(value, found):
            found[name] = texts
    return found


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _texts(node: ast.expr, known: Constants) -> frozenset[str]:
    """The texts that an expression may be, or that a tuple of texts has; empty if that is not known."""
    match node:
        case ast.Constant(value=str(text)):
            return frozenset({text})
        case ast.Name(id=name):
            return known.get(name, _NOTHING)
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return known.get(f"{module}.{name}", _NOTHING)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            is_nested = any(isinstance(each, ast.Tuple | ast.List) for each in elements)
            return _NOTHING if is_nested else _NOTHING.union(*(_texts(each, known) for each in elements))
        case ast.Starred(value=value):
            return _texts(value, known)
        case ast.JoinedStr(values=parts):
            return _joined(parts, known)
    return _NOTHING


def _joined(parts: list[ast.expr], known: Constants) -> frozenset[str]:
    text = ""
    for part in parts:
        found = _texts(part.value if isinstance(part, ast.FormattedValue) else part, known)
        if len(found) != 1:
            return _NOTHING
        text += next(iter(found))
    return frozenset({text})
