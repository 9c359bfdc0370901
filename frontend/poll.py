"""The live feed over polling, for pages whose WebSocket is blocked."""

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
    """Return `{"alive", "cycle_age_seconds", "topics": {topic: rows}, "errors": {topic: code}}` for `?topic=…&topic=…`.

    Without a login the answer is 401: a script cannot follow a redirect to the login page."""
    if not request.user.is_authenticated:
        return JsonResponse({"error": "you are not logged in"}, status=401)
    caller = identity(request)
    requested = list(dict.fromkeys(request.GET.getlist("topic")))[: 2 * MAX_TOPICS]
    valid = [topic for topic in requested if kind_of(topic)]
    errors = {topic: "too_many_topics" if topic in valid else "unknown_topic" for topic in requested}
    rows_by_topic = feed.load_for(valid[:MAX_TOPICS], caller.visible_tenants(), caller.user_id)
    errors = {topic: code for topic, code in errors.items() if topic not in rows_by_topic}
    errors |= {topic: "not_found" for topic, rows in rows_by_topic.items() if rows is None}
    answer = {
        "alive": rfc3339(timezone.now()),
        "cycle_age_seconds": scheduler_lag()["age_seconds"],
        "topics": {topic: rows for topic, rows in rows_by_topic.items() if rows is not None},
        "errors": errors,
    }
    return JsonResponse(answer, headers={"Cache-Control": "no-store"})
