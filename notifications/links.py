"""Addresses of pages for messages."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from django.conf import settings

from notifications.models import Kind

# Not by reverse(): the process that sends would load all views for it.
_PATHS = {
    Kind.BUDGET: "/tenants/{tenant}/",
    Kind.RESERVATION_STARTING: "/calendar/",
    Kind.RESERVATION_IDLE: "/calendar/",
    Kind.RESERVATION_LOST_GPUS: "/calendar/",
    Kind.RESERVATION_RELEASED: "/calendar/",
    Kind.INCIDENT: "/nodes/{node}/",
    Kind.TEST: "/notifications/",
}
_JOB = "/jobs/{job_id}/"


def page_of(kind: str, data: Mapping[str, Any]) -> str | None:
    """Return the address of the page about a notice with these details, at the first origin in
    GPUSCHED_TRUSTED_ORIGINS. None: without one, the server does not know under which name people reach it."""
    origins = [origin for origin in settings.CSRF_TRUSTED_ORIGINS if "*" not in origin]
    if not origins:
        return None
    names = {name: quote(str(value), safe="") for name, value in data.items()}
    return origins[0].rstrip("/") + _PATHS.get(Kind(kind), _JOB).format_map(names)
