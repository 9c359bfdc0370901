"""Values that functions of the server change at module level are caches (gpusched/lib/cache.py), not private inventions."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.server_source import ROOT, server_files

CHANGES = re.compile("add|append(left)?|clear|discard|extend|insert|pop(item|left)?|remove|setdefault|update")
# These install without the server, and so without its cache.
ELSEWHERE = tuple(f"gpusched/{part}" for part in ("agent/", "cli/", "client/", "protocol/", "serve.py"))
# (module, name): why it is no cache.
ALLOWED = {
    ("gpusched/tracing.py", "_traces"): "the tracer of a process, started once; agents have one, too",
    ("gpusched/tracing.py", "_started_in"): "the process that it was started in",
    ("gpusched/lib/cache.py", "_caches"): "the mechanism itself",
    ("gpusched/lib/api/openapi.py", "_structs"): "a register, filled while the schema is generated",
    (
        "scheduling/engine/queue/grouping.py",
        "_last",
    ): "the engine imports the standard library only; one immutable entry",
}


def changed_names(source: str) -> Iterator[str]:
    """Yield the module-level names that functions of the module rebind, or change in place; and unbounded caches.

    Objects that only change themselves, in their methods, are services with tests of their own."""
    tree = ast.parse(source)
    known = {
        name.id
        for node in tree.body
        for name in ast.walk(node)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(name, ast.Name)
        and isinstance(name.ctx, ast.Store)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        has_parameters = any((function.args.args, function.args.kwonlyargs, function.args.vararg, function.args.kwarg))
        if has_parameters and any(ast.unparse(d) in ("cache", "functools.cache") for d in function.decorator_list):
            yield function.name
        local = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        local |= {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        shared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
        yield from shared
        for node in ast.walk(function):
            target = node.value if isinstance(node, ast.Subscript | ast.Attribute) else None
            is_write = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and CHANGES.fullmatch(node.func.attr)
            ):
                target, is_write = node.func.value, True
            if is_write and isinstance(target, ast.Name) and target.id in known - local:
                yield target.id


def caches(source: str) -> set[str]:
    """Return the names that a module binds to a Cache, or to values that each thread has of its own."""
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    return {
        target.id
        for node in assigned
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("Cache", "threading.local")
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def test_server_changes_no_module_level_value_but_caches() -> None:
    changed, number = set(), 0
    for name in server_files():
        if name.startswith(ELSEWHERE):
            continue
        source = (ROOT / name).read_text()
        bound = caches(source)
        number += len(bound)
        changed |= {(name, variable) for variable in changed_names(source) if variable not in bound}
    assert changed == set(ALLOWED), "use gpusched.lib.cache.Cache, or give the reason in ALLOWED"
    assert number > 10


@pytest.mark.parametrize(
    "source",
    [
        "_seen = {}\ndef f(key):\n    _seen[key] = 1",
        "_seen: set[int] = set()\ndef f(key):\n    _seen.add(key)",
        "_last = None\ndef f(value):\n    global _last\n    _last = value",
        "_state = State()\nclass C:\n    def f(self):\n        _state.at = 1.0",
        "_seen = {}\nasync def f():\n    del _seen[1]",
        "from functools import cache\n@cache\ndef f(key):\n    return key",
    ],
)
def test_new_module_level_state_is_found(source: str) -> None:
    assert list(changed_names(source))


@pytest.mark.parametrize(
    "source",
    [
        "NAMES = {'a': 1}\ndef f():\n    return NAMES['a']",
        "_seen = {}\ndef f():\n    _seen = {}\n    _seen[1] = 2",
        "def f(items):\n    items.append(1)",
        "from functools import lru_cache\n@lru_cache(8)\ndef f(key):\n    return key",
        "hub = Hub()\ndef f():\n    hub.publish(1)",
    ],
)
def test_constants_locals_and_services_are_no_state(source: str) -> None:
    assert not list(changed_names(source))
