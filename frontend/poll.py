"""The live feed over polling, for pages whose WebSocket is blocked."""

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from frontend.live import snapshot
from frontend.live.hub import MAX_TOPICS
from gpusched.lib.api import rate_limits
from tenants.auth.identity import identity


@require_GET
def poll(request: HttpRequest) -> HttpResponse:
    """Return the snapshot of `?topic=…&topic=…`, with an error for each topic that is refused.

    Without a login it redirects to the login page, as all pages do."""
    if not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path())
    rate_limits.count_on_pages(request, request.user.pk)
    requested = list(dict.fromkeys(request.GET.getlist("topic")))[: 2 * MAX_TOPICS]
    answer = snapshot.load(requested[:MAX_TOPICS], identity(request))
    answer["errors"] |= dict.fromkeys(requested[MAX_TOPICS:], "too_many_topics")
    return JsonResponse(answer, headers={"Cache-Control": "no-store"})
