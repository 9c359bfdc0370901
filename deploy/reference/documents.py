"""The generated documents, and the generated parts of other documents."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from deploy.reference import command_line, operation, rest, sdk, words
from deploy.reference.parts import fill_parts

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

WHOLE: dict[str, Callable[[], str]] = {
    "reference/agent.md": command_line.agent_reference,
    "reference/cli.md": command_line.reference,
    "reference/sdk.md": sdk.reference,
}
PARTS: dict[str, Callable[[], str]] = {
    "commands": command_line.overview,
    "exit-codes": command_line.exit_codes,
    "routes-jobs": partial(rest.overview, "jobs"),
    "routes-tenants": partial(rest.overview, "tenants", "tokens", "audit"),
    "routes-users": partial(rest.overview, "users"),
    "routes-money": partial(rest.overview, "usage"),
    "routes-serving": partial(rest.overview, "serving"),
    "routes-notifications": partial(rest.overview, "notifications"),
    "routes-reservations": partial(rest.overview, "reservations"),
    "routes-nodes": partial(rest.overview, "nodes"),
    "routes-cluster": partial(rest.overview, "scheduling", "cluster"),
    "job-request": rest.job_request,
    "job-states": words.job_states,
    "reason-codes": words.reason_codes,
    "notices": words.notices,
    "ends": words.ends,
    "exit-classes": words.exit_classes,
    "problem-codes": words.problem_codes,
    "exceptions": sdk.errors,
    "agent-variables": command_line.agent_variables,
    "settings": operation.settings,
    "metrics": operation.metrics,
}


def generate() -> dict[Path, str]:
    """Return the new text of every document with generated content."""
    texts = {DOCS / name: make() for name, make in WHOLE.items()}
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text()
        if (filled := fill_parts(text, PARTS)) != text or "<!-- from the code:" in text:
            texts[path] = filled
    return texts
