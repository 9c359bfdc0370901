"""My work, where users land: their jobs, why those wait, how they ended, and what they may still use."""

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
def home(request: HttpRequest, who: Identity) -> HttpResponse:
    """The bare address: admins want to see the cluster, everybody else their own work."""
    return show_overview(request, who) if who.is_admin else redirect("mine")


@page
def my_work(request: HttpRequest, who: Identity) -> HttpResponse:
    jobs = my_work_rows.jobs(who.user_id)
    words: dict[str, Any] = {
        **jobs,
        "counts": my_work_rows.counts([who.user_id])[who.user_id],
        "quotas": [
            {**tenant, "live": (bar := _bar(tenant)), "scale": bar_scale([bar])} for tenant in my_work_rows.quotas(who)
        ],
        "notices": _notices(who),
        "is_new": not any(jobs.values()) and (who.is_admin or any(who.has(Role.MEMBER, one) for one in who.roles)),
        "tenant": min((name for i, name in who.tenant_names.items() if i not in who.archived), default=""),
        "url": request.build_absolute_uri("/").rstrip("/"),
    }
    return show(request, who, "my_work/page.html", words)


def _notices(who: Identity) -> list[dict[str, Any]]:
    """What became of the person's own jobs, newest first."""
    rows = feed.rows("notices", who.visible_tenants(), who.user_id)
    own = (row for key, row in rows.items() if key.startswith("notice:") and row["is_mine"])
    return sorted(own, key=lambda row: str(row["at"]), reverse=True)[:_MAX_NOTICES]


def _bar(tenant: dict[str, Any]) -> dict[str, Any]:
    """The tenant's GPUs as the bar wants them."""
    quota = tenant["quota"]
    held = {"gpus_held": tenant["in_use"]["gpus"], "jobs_waiting": tenant["pending_jobs"]}
    return {**held, "guaranteed_gpus": quota["guaranteed_gpus"], "max_gpus": quota["max_gpus"]}
