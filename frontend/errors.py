"""Error pages: what happened, what to do next, and the id under which the log knows the request."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpusched.lib.requests import current_id

_TEXTS = {
    400: ("This request cannot be understood", "Go back and try again."),
    403: ("You may not see this", "Ask an owner of the tenant or an admin."),
    404: ("There is no such page", "It may never have existed, or it belongs to a tenant that you are not in."),
    500: (
        "The server failed on this request",
        "Nothing of it was kept. Try again, and report the id below if it lasts.",
    ),
}


def page_error(request: HttpRequest, status: int) -> HttpResponse:
    title, step = _TEXTS[status]
    words = {"status": status, "title": title, "step": step, "request_id": current_id()}
    return render(request, "error.html", words, status=status)
