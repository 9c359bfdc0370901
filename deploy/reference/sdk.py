"""The reference of the Python SDK, from the signatures and docstrings of its client, jobs, elements and errors."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from deploy.reference.command_line import exceptions, docstring_of
from deploy.reference.parts import HEAD, code, table
from gpusched.client import Client
from gpusched.client.handles import ArrayElement, Job

_INTRODUCTION = """\
# Reference: the Python SDK

Each method with its arguments; [sdk.md](../sdk.md) says how they go together. `AsyncClient` has the same methods, to be
awaited (`follow` and `events` are for `async for`). What a method gives is a type of `gpusched.client`, whose fields
are those of the [REST answers](rest.md); all are typed, so an editor shows them.
"""
_KINDS = {
    "Client": (Client, "`Client(url=None, token=None, …)`, or what the environment and the config file say."),
    "A job": (Job, "What `submit`, `get`, `list` and `wait` give: the fields of [a job](../rest.md#a-job), and:"),
    "An element of an array": (ArrayElement, "What `elements` gives: its fields, and:"),
}


def reference() -> str:
    """The whole document."""
    parts = [HEAD, _INTRODUCTION]
    for title, (kind, said) in _KINDS.items():
        parts.append(f"\n## {title}\n\n{said}\n\n")
        parts.append(table(("method", "does"), [(code(_call(name, one)), _docstring(one)) for name, one in _methods(kind)]))
    parts += ["\n## Errors\n\n", errors()]
    return "".join(parts)


def errors() -> str:
    """Each exception with the exit code that the command line gives it."""
    rows = [(code(one.__name__), str(one.exit_code), docstring_of(one)) for one in exceptions()]
    return table(("exception", "exit code of the command line", "when"), rows)


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """What it can do, by name, but for what it inherits from the library of its fields."""
    for name, one in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and one.__module__.startswith("gpusched.client") and name != "send":
            yield name, one


def _call(name: str, method: Callable[..., Any]) -> str:
    words = []
    has_star = False
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            words.append("*")
            has_star = True
        words.append(_word(parameter))
    return f"{name}({', '.join(words)})"


def _word(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return "**fields"
    default = parameter.default
    return parameter.name if default is parameter.empty else f"{parameter.name}={default!r}"


def _docstring(method: Callable[..., Any]) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(method) or "")
