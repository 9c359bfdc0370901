"""The documentation matches the code (A54): routes, settings, metrics, codes of the contract, error codes, commands."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver
from rest_framework.views import APIView

from deploy.reference.command_line import PROGRAMS, commands
from gpusched.agent.rank_files import rank_dir, socket_dir
from gpusched.agent.ranks import environment
from gpusched.lib import histograms
from gpusched.lib.api.problem_codes import CODES
from gpusched.protocol.exits import ExitClass
from gpusched.protocol.reasons import EndReason, Notice, Pending
from gpusched.protocol.states import JobState
from scheduling.admission import REFUSED_AS
from tests.docs.reading import ROOT, first_words, rows, section, text_of

SERVER = ("gpusched", "tenants", "jobs", "nodes", "scheduling", "serving", "notifications", "frontend")


# --- routes -----------------------------------------------------------------------------------------------------------


def routes() -> set[tuple[str, str]]:
    """Return (method, path) of every route; for pages and other plain views the method is `*`."""
    from gpusched import urls

    paths = set(_walk(urls.urlpatterns, "/"))
    sockets = re.findall(r'path\("(ws/[^"]*)"', text_of("gpusched/asgi.py"))
    return paths | {("WebSocket", "/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)) for path in sockets}


def _walk(patterns: list[Any], prefix: str) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        path = prefix + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            if path == "/admin/":
                yield "*", path
            else:
                yield from _walk(pattern.url_patterns, path)
        else:
            for method in _methods(pattern):
                yield method, path


def _methods(pattern: URLPattern) -> list[str]:
    view = getattr(pattern.callback, "cls", None)
    if view is None or not issubclass(view, APIView):
        return ["*"]
    return [verb.upper() for verb in ("get", "post", "put", "patch", "delete") if hasattr(view, verb)]


def documented_routes() -> dict[tuple[str, str], list[str]]:
    documented = {}
    for row in rows(section("docs/rest.md", "## Routes")):
        terms = re.findall(r"`([^`]+)`", row[0])
        assert len(terms) == 2, f"'{row[0]}' is not `METHOD` `path`"
        documented[terms[0], terms[1]] = row
    return documented


def test_documented_routes_match_the_server():
    """A54."""
    real, documented = routes(), documented_routes()
    plain = {path for method, path in real if method == "*"}
    normalized = {("*", path) if path in plain else (method, path) for method, path in documented}
    assert normalized == real


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "folder"), [("## Command line and SDK", "gpusched/client"), ("## Agent", "gpusched/agent")]
)
def test_client_and_agent_variables_are_documented(heading: str, folder: str):
    """A54."""
    pattern = re.compile(r'(?:env\.get\(|envvar=)"(GPUSCHED_\w+)"')
    real = {name for path in (ROOT / folder).rglob("*.py") for name in pattern.findall(path.read_text())}
    assert set(first_words(section("docs/settings.md", heading))) == real


def test_job_variables_are_documented():
    """A54."""
    sources = inspect.getsource(environment) + text_of("gpusched/agent/supervisor/supervisor.py")
    real = set(re.findall(r'"((?:GPUSCHED_|CUDA_|MASTER_|WORLD_|RANK|PYTHON|TRACEPARENT)\w*)"', sources)) | {
        rank_dir.SCOPE_VARIABLE,
        socket_dir.VARIABLE,
    }
    assert set(first_words(section("docs/agent.md", "## The environment of a job"))) == real


def test_rank_files_are_documented():
    """A54."""
    names = {value for name, value in vars(rank_dir).items() if name.isupper() and isinstance(value, str)}
    names -= {rank_dir.SCOPE_VARIABLE, rank_dir._FLOCK, rank_dir.SECRETS_KEY, rank_dir.SOCKETS_KEY}
    assert set(first_words(section("docs/agent.md", "## The directory of a rank"))) == names


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_have_the_documented_types_and_labels(monkeypatch: pytest.MonkeyPatch):
    """A54."""
    from jobs.listing import tally
    from nodes.telemetry import samples
    from notifications import heartbeat
    from notifications import metrics as notification_metrics
    from scheduling.engine.model import Policy, Snapshot
    from scheduling.engine.whatif.questions import Present
    from scheduling.reservations.figures import Figures
    from scheduling.status import cluster, metric_families, metrics
    from scheduling.whatif import current, outcomes
    from scheduling.worker import housekeeping
    from serving import metrics as serving_metrics
    from serving.endpoints import activity
    from tenants.billing import budgets

    monkeypatch.setattr(serving_metrics, "query", lambda *args: [])
    monkeypatch.setattr(notification_metrics, "query", lambda *args: [])
    monkeypatch.setattr(heartbeat, "query", lambda *args: [])
    monkeypatch.setattr(activity, "loads", dict)
    monkeypatch.setattr(metrics, "query", lambda *args: [])
    monkeypatch.setattr(metrics, "scores", lambda days: [])
    monkeypatch.setattr(metrics, "figures", lambda: Figures(0, 0, 0, 0))
    monkeypatch.setattr(metrics, "by_state", dict)
    monkeypatch.setattr(cluster, "term", lambda: 1)
    monkeypatch.setattr(tally, "query", lambda *args: [])
    monkeypatch.setattr(outcomes, "query", lambda *args: [])
    monkeypatch.setattr(samples, "query", lambda *args: [])
    monkeypatch.setattr(histograms, "query", lambda *args: [])
    monkeypatch.setattr(cluster, "shares", list)
    monkeypatch.setattr(current, "cluster", lambda: Present(Snapshot((), (), (), ()), Policy(), 0.0))
    monkeypatch.setattr(budgets, "statuses", lambda **kwargs: [])
    monkeypatch.setattr(cluster, "scheduler_lag", lambda: {"is_alive": False})
    monkeypatch.setattr(housekeeping, "task_ages", lambda: {"mend": 1.0})
    real = {}
    for family in metrics._Database(None).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        real[name] = (family.type, tuple(getattr(family, "_labelnames", ())))
    assert real == {spec.name: (spec.type, spec.labels) for spec in metric_families.FAMILIES.values()}


def test_histogram_buckets_are_documented():
    [line] = re.findall(r"Their buckets end at (.*?)seconds\.", text_of("docs/metrics.md"), re.S)
    assert [float(number) for number in re.findall(r"[\d.]*\d", line)] == list(histograms.BOUNDS)


# --- the codes of the contract ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("### Reason codes", list(Pending)),
        ("### Notices", list(Notice)),
        ("### How an attempt ended", list(EndReason)),
        ("### Classes of ends", list(ExitClass)),
        ("### Job states", list(JobState)),
    ],
)
def test_codes_are_documented(heading: str, words: list[str]):
    """A54."""
    documented = first_words(section("docs/rest.md", heading))
    assert sorted(documented) == sorted(map(str, words))


def _refusals() -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield status and code of each error in the server's source: `Problem(status, code, …)` and the codes of concurrency
    limiters."""
    for package in SERVER:
        for path in (ROOT / package).rglob("*.py"):
            for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
                name = getattr(call.func, "id", "")
                if name == "Problem" and len(call.args) > 1:
                    yield call.args[0], call.args[1]
                elif name == "ConcurrencyLimiter":
                    yield None, next(keyword.value for keyword in call.keywords if keyword.arg == "code")


def _constants(part: ast.expr, kind: type) -> set[Any]:
    return {node.value for node in ast.walk(part) if isinstance(node, ast.Constant) and isinstance(node.value, kind)}


def test_error_codes_match_the_server():
    """A54: each code with its status, as in docs/rest.md."""
    codes, statuses = {"not_acceptable", "unsupported_media_type", str(Pending.NEVER_FITS)}, {}
    codes |= {code for _, code in REFUSED_AS.values()}
    for status, code in _refusals():
        names = _constants(code, str)
        codes |= names
        if status is not None and len(names) == 1 and (numbers := _constants(status, int)):
            statuses[names.pop()] = numbers
    assert codes == set(CODES)
    assert statuses == {name: {CODES[name][0]} for name in statuses}


# --- flags -------------------------------------------------------------------------------------------------


def test_documented_flags_exist():
    """A54. The reference, generated from the parsers, has each command's own flags."""
    existing = {
        flag
        for command in commands()
        for param in command.parser.params
        for flag in (*param.opts, *param.secondary_opts)
    }
    existing |= {flag for param in PROGRAMS["gpusched"].params for flag in param.opts}
    named = set(re.findall(r"`(--[a-z][\w-]+)", text_of("docs/cli.md"))) - {"--help", "--token"}
    assert named and named <= existing
