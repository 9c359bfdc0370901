"""Mark notices as read."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.pages.notices import rows as noticerows
from frontend.ui.page import page
from tenants.auth.identity import Identity


@require_POST
@page
def mark_read(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Mark all current notices of the caller as read."""
    noticerows.mark_read(identity.user_id)
    return HttpResponse(status=204)
