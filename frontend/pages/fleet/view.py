"""The fleet map and the list of nodes."""

from django.http import HttpRequest, HttpResponse

from frontend.pages.calendar import slot
from frontend.pages.calendar.lanes import timeline
from frontend.pages.nodes import groups
from frontend.ui.page import page, show
from gpusched.lib.db.sql import query
from tenants.auth.identity import Identity

# The calendar above the map shows the time around now; the page Calendar shows weeks.
CALENDAR_DAYS = 1
_COUNTS = """
    SELECT count(DISTINCT n.id) AS nodes, count(d.id) AS gpus
      FROM nodes_all n LEFT JOIN nodes_devices d ON d.node_id = n.id WHERE n.removed_at IS NULL
"""


@page
def fleet(request: HttpRequest, identity: Identity) -> HttpResponse:
    bookings = timeline(CALENDAR_DAYS, identity.visible_tenants())
    return show(request, identity, "fleet/page.html", {**bookings, **slot.form({})})


@page
def nodes(request: HttpRequest, identity: Identity) -> HttpResponse:
    group = request.GET.get("group", "")
    [count] = query(_COUNTS)
    context = {
        "is_cpu_only": count == {"nodes": 1, "gpus": 0},
        "groups": [("", "All"), *((key, label) for key, label, _ in groups.GROUPS)],
        "chosen_group": group if group in groups.KEYS else "",
        "has_any": count["nodes"] > 0,
    }
    return show(request, identity, "nodes/page.html", context)
