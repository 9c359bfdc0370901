"""The tables of settings and metrics, from the catalogues that the server itself reads."""

from dataclasses import Field, fields
from typing import Any

from deploy.reference.parts import code, table
from gpusched.env import PREFIX, Env
from scheduling.status.metric_families import FAMILIES


def settings() -> str:
    """A row for each setting of the server."""
    rows = [(code(PREFIX + one.name.upper()), code(_default(one.default)), _meaning(one)) for one in fields(Env)]
    return table(("setting", "default", "meaning"), rows)


def _default(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "(empty)" if default == "" else str(default)


def _meaning(field: Field[Any]) -> str:
    told: str = field.metadata["doc"]
    between = field.metadata["between"]
    return f"{told} ({between[0]:,} to {between[1]:,})" if between else told


def metrics() -> str:
    """A row for each metric, as it is scraped."""
    rows = [
        (code(one.name), one.type, ", ".join(code(label) for label in one.labels), one.meaning)
        for one in FAMILIES.values()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)
