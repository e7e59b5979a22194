"""A plugin of mypy: calls of msgspec's `replace` are checked as those of `dataclasses.replace` are.

Mypy keeps the signature of a struct's `replace` as for a dataclass, because msgspec says that structs are alike. But it
asks for the signature only where `dataclasses.replace` is called, and msgspec's own takes any changes.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import FunctionSigContext, Plugin
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.subtypes import is_subtype
from mypy.types import CallableType, FunctionLike


class StructsPlugin(Plugin):
    """Hooks into calls of `msgspec.structs.replace`."""

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """The hook for a function; None for all others."""
        return _of_struct if fullname == "msgspec.structs.replace" else None


def _of_struct(context: FunctionSigContext) -> CallableType:
    found = replace_function_sig_callback(context)
    (struct,) = context.default_signature.variables
    # A dataclass has such a signature, too, and would fail when it runs. What msgspec declares refuses it.
    return found if is_subtype(found.arg_types[0], struct.upper_bound) else context.default_signature


def plugin(_version: str) -> type[Plugin]:
    """Return the class of the plugin. Mypy calls this function by its name."""
    return StructsPlugin
