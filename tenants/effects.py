"""What an edit of a quota would do to jobs: told by what stands above tenants, which registers itself at the start.

Tenants may not import the scheduler, so it registers (scheduling/apps.py)."""

from collections.abc import Callable, Mapping
from typing import Any

# (tenant id, all limits as they are to be) → the effect, as docs/rest.md has it.
Preview = Callable[[int, Mapping[str, Any]], dict[str, Any]]
_previews: list[Preview] = []
# What an effect says where there is none.
NO_EFFECT = "nothing that runs or waits is affected now"


def register(preview: Preview) -> None:
    _previews[:] = [preview]


def quota_effect(tenant_id: int, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing is written. Empty where nobody knows."""
    return _previews[0](tenant_id, limits) if _previews else {}
