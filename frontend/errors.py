"""Error pages: what happened, what to do next, and the id under which the log knows the request."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpusched.lib.problems import Problem, response_for, wants_problem
from gpusched.lib.requests import current_id

_TEXTS = {
    400: ("This request cannot be understood", "Go back and try again."),
    403: ("You may not see this", "Ask an owner of the tenant or an admin."),
    404: ("There is no such page", "It may never have existed, or it belongs to a tenant that you are not in."),
    429: ("Too many attempts", "Wait a while before you try again."),
    500: (
        "The server failed on this request",
        "Nothing of it was kept. Try again, and report the id below if it lasts.",
    ),
}


def page_error(request: HttpRequest, status: int, problem: Problem | None = None) -> HttpResponse:
    """The page of a status; with a problem, its own sentence and what to do about it."""
    title, step = _TEXTS[status]
    if problem is not None:
        step = " ".join(f"{part[:1].upper()}{part[1:]}." for part in (problem.detail, problem.next_step) if part)
    words = {"status": status, "title": title, "step": step, "request_id": current_id()}
    return render(request, "error.html", words, status=status)


class RefusalsAsPages:
    """A refusal that no view has answered, as that of a login, becomes a page with its sentence and `Retry-After`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, Problem):
            return None
        if wants_problem(request):
            return response_for(error)
        response = page_error(request, error.status if error.status in _TEXTS else 400, error)
        if error.retry_after is not None:
            response["Retry-After"] = str(error.retry_after)
        return response
