"""No function of the core or the api calls itself over input without a stated bound, directly or through others.

Calls are found in the source: of functions by their name, also if it was imported, and of methods of the same object.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]

IN_A_TEMPLATE = (
    "a template or an object of a cluster: `api.validation` bounds templates, `kube.bounds` objects"
)
ALLOWED = {
    "dispatcher.api.schema._unknown_in": "the fields of the spec, which do not contain themselves",
    "dispatcher.api.validation._objects_in": IN_A_TEMPLATE,
    "dispatcher.core.kinds.drift._of_value": IN_A_TEMPLATE,
    "dispatcher.core.kinds.drift._of_object": IN_A_TEMPLATE,
    "dispatcher.core.kinds.drift._of_list": IN_A_TEMPLATE,
    "dispatcher.core.kinds.drift._of_entries": IN_A_TEMPLATE,
    "dispatcher.core.kinds.drift._is_nothing": IN_A_TEMPLATE,
    "dispatcher.core.kinds.manifest._with_pods_marked": IN_A_TEMPLATE,
    "dispatcher.core.kinds.pods.pod_defaults._defaulted": IN_A_TEMPLATE,
    "dispatcher.core.kinds.template_fields._dropped": IN_A_TEMPLATE,
    "dispatcher.core.scheduling.placement.node_traits.Traits._mask": "a mask needs that of all usable nodes",
    "dispatcher.core.scheduling.placement.node_traits.Traits._find_mask": "as `_mask`",
    "dispatcher.core.scheduling.placement.node_traits.Traits.usable": "as `_mask`",
    "dispatcher.core.scheduling.placement.spread._Tree._settled": "at most `MOST_LOWERINGS` levels are lowered",
    "dispatcher.core.scheduling.placement.spread._Tree._lowered": "at most `MOST_LOWERINGS` levels are lowered",
}
"""The functions that call themselves, and what bounds the depth of each."""


def test_each_function_that_calls_itself_has_a_stated_bound() -> None:
    graph: dict[str, set[str]] = {}
    for room in ("api", "core"):
        for path in sorted((ROOT / "dispatcher" / room).rglob("*.py")):
            graph |= calls_of(ast.parse(path.read_text(encoding="utf-8")), module_of(path))
    assert len(graph) > 1000
    assert {name for name in graph if name in reachable(graph, name)} == ALLOWED.keys()


def test_recursion_is_found_through_others_and_through_methods() -> None:
    source = "\n".join(
        (
            "def one(): return two()",
            "def two(): return [one() for _ in ()]",
            "def three(): return one()",
            "class Tree:",
            "    def walk(self): return self.step()",
            "    def step(self): return self.walk()",
        )
    )
    graph = calls_of(ast.parse(source), "m")
    found = {name for name in graph if name in reachable(graph, name)}
    assert found == {"m.one", "m.two", "m.Tree.walk", "m.Tree.step"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def calls_of(tree: ast.Module, module: str) -> dict[str, set[str]]:
    """The functions of a module by full name, and the full names that each calls; nested functions are part of it."""
    functions = (each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    names = {each.name: f"{module}.{each.name}" for each in functions}
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and each.module:
            names |= {alias.asname or alias.name: f"{each.module}.{alias.name}" for alias in each.names}
    found = {}
    for owner, function in functions_of(tree):
        prefix = f"{module}.{owner}." if owner else f"{module}."
        found[f"{prefix}{function.name}"] = set(called_in(function, names, prefix if owner else ""))
    return found


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for each in tree.body:
        if isinstance(each, ast.FunctionDef):
            yield "", each
        elif isinstance(each, ast.ClassDef):
            yield from ((each.name, inner) for inner in each.body if isinstance(inner, ast.FunctionDef))


def called_in(function: ast.FunctionDef, names: dict[str, str], owner: str) -> Iterator[str]:
    """What a function names: functions, those of modules that it names, and attributes of its own object."""
    own = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    own |= {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and is_set(each)}
    known = {name: full for name, full in names.items() if name not in own}
    for each in ast.walk(function):
        if isinstance(each, ast.Name) and each.id in known:
            yield known[each.id]
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            if each.value.id in {"self", "cls"} and owner:
                yield f"{owner}{each.attr}"
            elif each.value.id in known:
                yield f"{known[each.value.id]}.{each.attr}"
        elif isinstance(each, ast.FunctionDef) and each is not function and calls_itself(each):
            yield f"{owner}{function.name}" if owner else names[function.name]


def is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def calls_itself(inner: ast.FunctionDef) -> bool:
    """True if a function in a function names itself: then the outer one counts as calling itself."""
    return any(isinstance(each, ast.Name) and each.id == inner.name for each in ast.walk(inner))


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """All functions that one calls, also through others."""
    found: set[str] = set()
    left = [*graph[start]]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += graph.get(name, ())
    return found
