"""Documented = real, real = documented (A54): routes, settings, metrics, words of the contract, error codes, commands."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver
from rest_framework.views import APIView

from deploy.reference.command_line import PROGRAMS, commands
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks import environment
from gpusched.lib import histograms
from gpusched.lib.api.problem_codes import CODES
from gpusched.protocol.exits import ExitClass
from gpusched.protocol.reasons import EndReason, Notice, Pending
from gpusched.protocol.states import JobState
from scheduling.admission import REFUSED_AS
from tests.docs.reading import ROOT, first_words, rows, section, text_of

SERVER = ("gpusched", "tenants", "jobs", "nodes", "scheduling", "frontend")


# --- routes -----------------------------------------------------------------------------------------------------------


def routes() -> set[tuple[str, str]]:
    """(method, path) of everything that the server answers; pages and other plain views have no method of their own."""
    from gpusched import urls

    found = set(_walk(urls.urlpatterns, "/"))
    sockets = re.findall(r'path\("(ws/[^"]*)"', text_of("gpusched/asgi.py"))
    return found | {("WebSocket", f"/{path}") for path in sockets}


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
    told = {}
    for row in rows(section("docs/rest.md", "## Routes")):
        words = re.findall(r"`([^`]+)`", row[0])
        assert len(words) == 2, f"'{row[0]}' is not `METHOD` `path`"
        told[words[0], words[1]] = row
    return told


def test_every_route_is_documented_and_every_documented_route_exists():
    """A54."""
    real, told = routes(), documented_routes()
    plain = {path for method, path in real if method == "*"}
    found = {("*", path) if path in plain else (method, path) for method, path in told}
    assert found == real


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "folder"), [("## Command line and SDK", "gpusched/client"), ("## Agent", "gpusched/agent")]
)
def test_every_variable_of_the_command_line_and_the_agent_is_documented(heading: str, folder: str):
    """A54."""
    asked = re.compile(r'(?:env\.get\(|envvar=)"(GPUSCHED_\w+)"')
    real = {name for path in (ROOT / folder).rglob("*.py") for name in asked.findall(path.read_text())}
    assert set(first_words(section("docs/settings.md", heading))) == real


def test_every_variable_of_a_job_is_documented():
    """A54."""
    sources = inspect.getsource(environment) + text_of("gpusched/agent/supervisor/supervisor.py")
    real = set(re.findall(r'"((?:GPUSCHED_|CUDA_|MASTER_|WORLD_|RANK|PYTHON|TRACEPARENT)\w*)"', sources)) | {
        rank_dir.SCOPE_VARIABLE
    }
    assert set(first_words(section("docs/agent.md", "## The environment of a job"))) == real


def test_every_file_of_a_rank_is_documented():
    """A54."""
    names = {value for name, value in vars(rank_dir).items() if name.isupper() and isinstance(value, str)}
    names -= {rank_dir.SCOPE_VARIABLE, rank_dir._FLOCK}
    assert set(first_words(section("docs/agent.md", "## The directory of a rank"))) == names


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_every_metric_of_the_reference_is_given_with_its_type_and_labels(monkeypatch: pytest.MonkeyPatch):
    """A54."""
    from jobs.listing import tally
    from nodes.telemetry import samples
    from scheduling.engine.model import Policy, Snapshot
    from scheduling.engine.whatif.questions import Present
    from scheduling.status import cluster, metric_families, metrics
    from scheduling.whatif import current, outcomes
    from scheduling.worker import housekeeping
    from tenants.billing import budgets

    monkeypatch.setattr(metrics, "query", lambda *args: [])
    monkeypatch.setattr(metrics, "by_state", dict)
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
    assert real == {one.name: (one.type, one.labels) for one in metric_families.FAMILIES.values()}


def test_the_buckets_of_histograms_are_documented():
    [line] = re.findall(r"Their buckets end at (.*?)seconds\.", text_of("docs/metrics.md"), re.S)
    assert [float(number) for number in re.findall(r"[\d.]*\d", line)] == list(histograms.BOUNDS)


# --- the words of the contract ----------------------------------------------------------------------------------------


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
def test_every_word_is_documented(heading: str, words: list[str]):
    """A54."""
    told = first_words(section("docs/rest.md", heading))
    assert sorted(told) == sorted(map(str, words))


def _refusals() -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """The status and the code of each refusal in the source of the server: `Problem(status, code, …)`, and what refuses
    when there are many."""
    for package in SERVER:
        for path in (ROOT / package).rglob("*.py"):
            for call in (one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)):
                name = getattr(call.func, "id", "")
                if name == "Problem" and len(call.args) > 1:
                    yield call.args[0], call.args[1]
                elif name == "ConcurrencyLimiter":
                    yield None, next(word.value for word in call.keywords if word.arg == "code")


def _constants(part: ast.expr, kind: type) -> set[Any]:
    return {one.value for one in ast.walk(part) if isinstance(one, ast.Constant) and isinstance(one.value, kind)}


def test_the_catalogue_of_error_codes_is_what_the_server_answers():
    """A54: each code with its status, of which docs/rest.md is written."""
    found, statuses = {"not_acceptable", "unsupported_media_type", str(Pending.NEVER_FITS)}, {}
    found |= {code for _, code in REFUSED_AS.values()}
    for status, code in _refusals():
        names = _constants(code, str)
        found |= names
        if status is not None and len(names) == 1 and (numbers := _constants(status, int)):
            statuses[names.pop()] = numbers
    assert found == set(CODES)
    assert statuses == {name: {CODES[name][0]} for name in statuses}


# --- what people type -------------------------------------------------------------------------------------------------


def test_every_flag_that_a_document_names_exists():
    """A54. Each command's own flags are in the reference, which is written from the parser."""
    known = {flag for one in commands() for param in one.parser.params for flag in (*param.opts, *param.secondary_opts)}
    known |= {flag for param in PROGRAMS["gpusched"].params for flag in param.opts}
    named = set(re.findall(r"`(--[a-z][\w-]+)", text_of("docs/cli.md"))) - {"--help", "--token"}
    assert named and named <= known
