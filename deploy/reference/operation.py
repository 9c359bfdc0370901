"""Generate the tables of settings and metrics from the definitions that the server reads."""

from dataclasses import Field, fields
from typing import Any

from deploy.reference.parts import code, table
from gpusched.env import PREFIX, Env
from scheduling.status.metric_families import FAMILIES


def settings() -> str:
    """Return a table of the server's settings."""
    rows = [
        (code(PREFIX + setting.name.upper()), code(_default(setting.default)), _meaning(setting))
        for setting in fields(Env)
    ]
    return table(("setting", "default", "meaning"), rows)


def _default(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "(empty)" if default == "" else str(default)


def _meaning(field: Field[Any]) -> str:
    doc: str = field.metadata["doc"]
    between = field.metadata["between"]
    return f"{doc} ({between[0]:,} to {between[1]:,})" if between else doc


def metrics() -> str:
    """Return a table of the metrics."""
    rows = [
        (code(family.name), family.type, ", ".join(code(label) for label in family.labels), family.meaning)
        for family in FAMILIES.values()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)
