"""Generate the SDK reference from the signatures and docstrings of client, jobs, elements and errors."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from deploy.reference.command_line import exceptions, docstring_of
from deploy.reference.parts import HEAD, code, table
from gpusched.client import ArrayElement, Client, Job

_INTRODUCTION = """\
# Reference: the Python SDK

This page lists each method with its arguments; [sdk.md](../sdk.md) is the guide. `AsyncClient` has the same methods:
await them (use `follow` and `events` with `async for`). Methods return types of `gpusched.protocol.rest`, whose fields
are those of the [REST answers](../rest.md); all are typed, so an editor shows them.
"""
_KINDS = {
    "Client": (Client, "`Client(url=None, token=None, …)`; defaults come from the environment and the config file."),
    "A job": (
        Job,
        "`submit`, `get`, `list` and `wait` return jobs: the fields of [a job](../rest.md#a-job), and these methods:",
    ),
    "An element of an array": (ArrayElement, "`elements` returns elements: their fields, and these methods:"),
}


def reference() -> str:
    """Return the whole document."""
    parts = [HEAD, _INTRODUCTION]
    for title, (kind, introduction) in _KINDS.items():
        parts.append(f"\n## {title}\n\n{introduction}\n\n")
        parts.append(
            table(
                ("method", "what it does"),
                [(code(_call(name, method)), _docstring(method)) for name, method in _methods(kind)],
            )
        )
    parts += ["\n## Errors\n\n", errors()]
    return "".join(parts)


def errors() -> str:
    """Return a table of exceptions with the exit codes of the command line."""
    rows = [(code(error.__name__), str(error.exit_code), docstring_of(error)) for error in exceptions()]
    return table(("exception", "exit code of the command line", "when"), rows)


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods by name, without those inherited from msgspec."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and method.__module__.startswith("gpusched.client") and name != "send":
            yield name, method


def _call(name: str, method: Callable[..., Any]) -> str:
    arguments = []
    has_star = False
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            arguments.append("*")
            has_star = True
        arguments.append(_word(parameter))
    return f"{name}({', '.join(arguments)})"


def _word(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return "**fields"
    default = parameter.default
    return parameter.name if default is parameter.empty else f"{parameter.name}={default!r}"


def _docstring(method: Callable[..., Any]) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(method) or "")
