"""Says that a person has read the notices."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.pages.notices import rows as noticerows
from frontend.ui.page import page
from tenants.auth.identity import Identity


@require_POST
@page
def mark_read(request: HttpRequest, identity: Identity) -> HttpResponse:
    """All that there is now; what comes later is unread again."""
    noticerows.mark_read(identity.user_id)
    return HttpResponse(status=204)
