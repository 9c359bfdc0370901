"""Resolve calls from an app to a higher layer, by name in HOOKS of gpusched/settings.py."""

from functools import lru_cache
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string


@lru_cache(64)
def hook(name: str) -> Any:
    """Return the function, or the SQL text, that `HOOKS` names."""
    return import_string(settings.HOOKS[name])
