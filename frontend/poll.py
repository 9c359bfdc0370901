"""The live feed for pages that get no WebSocket through: the same rows, asked for again and again."""

from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from frontend.live import feed
from frontend.live.hub import MAX_TOPICS
from frontend.live.topics import kind_of
from gpusched.lib.times import rfc3339
from scheduling.status.cluster import scheduler_lag
from tenants.auth.identity import identity


@require_GET
def poll(request: HttpRequest) -> JsonResponse:
    """`?topic=nodes&topic=job:17` gives `{"alive", "cycle_age_seconds", "topics": {topic: rows}, "errors": {topic:
    code}}`; 401 for nobody, since a page cannot follow a script's redirect to the login."""
    if not request.user.is_authenticated:
        return JsonResponse({"error": "you are not logged in"}, status=401)
    who = identity(request)
    asked = list(dict.fromkeys(request.GET.getlist("topic")))[: 2 * MAX_TOPICS]
    known = [topic for topic in asked if kind_of(topic)]
    errors = {topic: "too_many_topics" if topic in known else "unknown_topic" for topic in asked}
    found = feed.load_for(known[:MAX_TOPICS], who.visible_tenants(), who.user_id)
    errors = {topic: code for topic, code in errors.items() if topic not in found}
    errors |= {topic: "not_found" for topic, rows in found.items() if rows is None}
    answer = {
        "alive": rfc3339(timezone.now()),
        "cycle_age_seconds": scheduler_lag()["age_seconds"],
        "topics": {topic: rows for topic, rows in found.items() if rows is not None},
        "errors": errors,
    }
    return JsonResponse(answer, headers={"Cache-Control": "no-store"})
