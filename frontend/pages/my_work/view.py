"""My work, the landing page of users: their jobs, with reasons and results, and their remaining quota."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from frontend.live import feed
from frontend.pages.my_work import rows as my_work_rows
from frontend.pages.overview.view import show_overview
from frontend.pages.tenants.rows import bar_scale
from frontend.ui.page import page, show
from gpusched.protocol.states import Role
from tenants.auth.identity import Identity

_MAX_NOTICES = 8


@page
def home(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Show the overview to admins and redirect other users to their own work."""
    return show_overview(request, identity) if identity.is_admin else redirect("mine")


@page
def my_work(request: HttpRequest, identity: Identity) -> HttpResponse:
    jobs = my_work_rows.jobs(identity.user_id)
    context: dict[str, Any] = {
        **jobs,
        "counts": my_work_rows.counts([identity.user_id])[identity.user_id],
        "quotas": [
            {**tenant, "live": (bar := _bar(tenant)), "scale": bar_scale([bar])}
            for tenant in my_work_rows.quotas(identity)
        ],
        "notices": _notices(identity),
        "is_new": not any(jobs.values())
        and (identity.is_admin or any(identity.has(Role.MEMBER, tenant_id) for tenant_id in identity.roles)),
        "tenant": min((name for i, name in identity.tenant_names.items() if i not in identity.archived), default=""),
        "url": request.build_absolute_uri("/").rstrip("/"),
    }
    return show(request, identity, "my_work/page.html", context)


def _notices(identity: Identity) -> list[dict[str, Any]]:
    """Return notices about the user's own jobs, newest first."""
    rows = feed.rows("notices", identity.visible_tenants(), identity.user_id)
    user_rows = (row for key, row in rows.items() if key.startswith("notice:") and row["is_mine"])
    return sorted(user_rows, key=lambda row: str(row["at"]), reverse=True)[:_MAX_NOTICES]


def _bar(tenant: dict[str, Any]) -> dict[str, Any]:
    """Return the tenant's GPUs in the shape that the bar template expects."""
    quota = tenant["quota"]
    use = {"gpus_held": tenant["in_use"]["gpus"], "jobs_waiting": tenant["pending_jobs"]}
    return {**use, "guaranteed_gpus": quota["guaranteed_gpus"], "max_gpus": quota["max_gpus"]}
