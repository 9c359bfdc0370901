"""The overview: problems, idle GPUs, waiting jobs by reason, and tenants against their shares."""

from django.http import HttpRequest, HttpResponse

from frontend.pages.join.view import join_context
from frontend.ui.page import page, show
from gpusched.lib.db.sql import query
from tenants.auth.identity import Identity


@page
def overview(request: HttpRequest, identity: Identity) -> HttpResponse:
    return show_overview(request, identity)


def show_overview(request: HttpRequest, identity: Identity) -> HttpResponse:
    template = "overview/wall.html" if request.GET.get("wall") == "1" else "overview/page.html"
    [row] = query("SELECT EXISTS (SELECT 1 FROM nodes_all WHERE removed_at IS NULL) AS has_nodes")
    return show(request, identity, template, {**row, **join_context(request)})
