"""Agents in which any await or thread call can be made to raise: a process that forks them, with probes at each site.

Run as `python -m tests.agent.injection`. The probes are put in while the modules of the agent are imported, so that a
new await has one, too. Each line of the input is a Case; files in its folder say what happens:

    sites.json  all probes              pid, exit   of the agent's process        log     what it wrote
    hit         probes that were passed, one a line; `! SITE` once it was armed   fired   one line per injected error
    armed       made by the test: from now on the site raises"""

import ast
import asyncio
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.protocol.agent_messages import Reading

if TYPE_CHECKING:
    from gpusched.agent.host.machine import PretendMachine

PACKAGE = "gpusched.agent."
THREAD_CALLS = {"to_thread", "run_in_executor", "submit", "map", "Thread"}
ERRORS: dict[str, type[BaseException]] = {
    "RuntimeError": RuntimeError, "OSError": OSError, "CancelledError": asyncio.CancelledError,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`sites`: where it raises; always, or once each."""

    folder: str
    url: str
    sites: tuple[str, ...] = ()
    error: str = "RuntimeError"
    always: bool = False
    own_jobs: bool = False


class _Probes(ast.NodeTransformer):
    """Wraps what is awaited, entered or iterated asynchronously, and the calls that start threads."""

    def __init__(self, module: str) -> None:
        self.sites: list[str] = []
        self._path = [module]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._inside(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node)

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()
        return node

    def visit_Await(self, node: ast.Await) -> ast.AST:
        site = self._site()
        for child in ast.iter_child_nodes(node.value):  # the call itself raises where it is awaited
            self.visit(child)
        node.value = self._wrapped("probe_await", site, node.value)
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        self.generic_visit(node)
        for item in node.items:
            item.context_expr = self._wrapped("probe_context", self._site(), item.context_expr)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._wrapped("probe_iterator", self._site(), node.iter)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in THREAD_CALLS:
            node.func = self._wrapped("probe_call", self._site(), node.func)
        return node

    def _site(self) -> str:
        path = ".".join(self._path)
        self.sites.append(f"{path}#{sum(site.rpartition('#')[0] == path for site in self.sites) + 1}")
        return self.sites[-1]

    def _wrapped(self, probe: str, site: str, value: ast.expr) -> ast.expr:
        call = ast.parse(f"__import__('tests.agent.injection', fromlist=['x']).{probe}({site!r})", mode="eval").body
        assert isinstance(call, ast.Call)
        call.args.append(value)
        return call


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        probes = _Probes(fullname.removeprefix(PACKAGE))
        tree = ast.fix_missing_locations(probes.visit(ast.parse(Path(path).read_text())))
        state.sites += probes.sites
        code: types.CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname.startswith(PACKAGE) else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _State:
    """The errors that one agent must inject, and has injected."""

    def __init__(self) -> None:
        self.sites: list[str] = []
        self.case = Case("", "")
        self._hits: set[str] = set()
        self._fired: set[str] = set()
        self._lock = threading.Lock()

    def is_to_raise(self, site: str) -> bool:
        if not self.case.folder:
            return False
        with self._lock:
            is_armed = os.path.exists(f"{self.case.folder}/armed")
            self._note("hit", f"! {site}" if is_armed else site)
            if not is_armed or site not in self.case.sites or (site in self._fired and not self.case.always):
                return False
            self._fired.add(site)
            self._note("fired", f"{site}", is_repeated=True)
            return True

    def _note(self, name: str, line: str, is_repeated: bool = False) -> None:
        if is_repeated or line not in self._hits:
            self._hits.add(line)
            with open(f"{self.case.folder}/{name}", "a") as file:
                file.write(f"{line}\n")

    def error(self, site: str) -> BaseException:
        return ERRORS[self.case.error](f"injected at {site}")


state = _State()


async def probe_await(site: str, awaited: Awaitable[Any]) -> Any:
    if state.is_to_raise(site):
        if isinstance(awaited, types.CoroutineType):
            awaited.close()
        raise state.error(site)
    return await awaited


class probe_context:  # noqa: N801 - stands where a function could
    def __init__(self, site: str, context: Any) -> None:
        self._site, self._context = site, context

    async def __aenter__(self) -> Any:
        if state.is_to_raise(self._site):
            raise state.error(self._site)
        return await self._context.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self._context.__aexit__(*error)


async def probe_iterator(site: str, iterable: Any) -> Any:
    async for item in iterable:
        if state.is_to_raise(site):
            raise state.error(site)
        yield item


def probe_call(site: str, function: Any) -> Any:
    if state.is_to_raise(site):
        raise state.error(site)
    return function


def _shorten_clocks() -> None:
    """The same agent, five times as fast and more, so that a test of five seconds takes one."""
    from gpusched.agent import daemon, link, log_shipping, node, supervision
    from gpusched.agent.gpus import release_check

    supervision.REPORT_SECONDS, supervision.MAX_PAUSE_SECONDS, supervision.FIRST_PAUSE_SECONDS = 0.8, 0.2, 0.02
    link.FIRST_PAUSE_SECONDS, link.MAX_PAUSE_SECONDS, link.HTTP_SECONDS = 0.02, 0.2, 0.5
    link.UNWRITTEN_SECONDS, link.ASK_SECONDS = 0.2, 0.2
    node.POLL_SECONDS, node.PRUNE_SECONDS, node.FACTS_SECONDS = 0.1, 0.2, 0.2
    log_shipping.POLL_SECONDS, log_shipping.PAUSE_SECONDS = 0.05, 0.2
    release_check.MOMENT_SECONDS, daemon.STOP_SECONDS = 5.0, 3.0


def machine() -> "PretendMachine":
    """A pretend one with a GPU on which some memory is left at first after each start of the agent."""
    from msgspec.structs import replace

    from gpusched.agent.host.machine import PretendMachine, PretendSpec

    class Machine(PretendMachine):
        looks = 0

        def read_use(self, devices: Collection[str], busy: Callable[[], set[str]]) -> list[Reading]:
            self.looks += 1
            left_mb = 5000 if self.looks <= 2 else 0
            return [replace(reading, memory_used_mb=left_mb) for reading in super().read_use(devices, busy)]

    return Machine("node-a", PretendSpec(1, "A100", 81920, 1, 8, 65536))


def _agent(case: Case) -> None:
    """The agent's process. Ends like one."""
    from gpusched.agent import daemon, main

    log = os.open(f"{case.folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    main._log_as("line")
    _shorten_clocks()
    Path(case.folder, "sites.json").write_text(json.dumps(state.sites))
    state.case = case
    plan = daemon.Plan(
        Path(case.folder, "agent"), {"node-a": machine()}, case.url, "j1.token", case.own_jobs, heartbeat_seconds=0.05
    )
    daemon.run(plan)


def _fork(case: Case) -> None:
    """Forks the agent from a process that waits for its end, and writes that down."""
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _agent(case)
            status = 0
        except BaseException:  # noqa: BLE001 - as the interpreter does at its end
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    _appear(case, "pid", str(pid))
    _appear(case, "exit", str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def _appear(case: Case, name: str, text: str) -> None:
    Path(case.folder, f".{name}").write_text(text)
    Path(case.folder, f".{name}").rename(Path(case.folder, name))


def as_line(case: Case) -> str:
    return json.dumps(asdict(case)) + "\n"


def main() -> None:
    # This very module, under the name that the probes import.
    from tests.agent import injection

    sys.meta_path.insert(0, injection._Finder())
    injection.serve()


def serve() -> None:
    importlib.import_module("gpusched.agent.main")  # and with it all modules of the agent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        fields = json.loads(line)
        _fork(Case(**{**fields, "sites": tuple(fields["sites"])}))


if __name__ == "__main__":
    main()
