"""`?dry_run=true` on any write of the API: it is done as it would be, answered, and all of it taken back.

Views that say more of what would follow (an effect, a simulation) have the parameter among their own, and ask
`is_dry_run`."""

from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request

from gpusched.lib.api.problems import Problem, invalid, response_for
from gpusched.lib.api.rest import require_once
from gpusched.protocol.job_request import FieldError

HEADER = "Dry-Run"
_MARK = "gpusched_is_dry_run"
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class DryRuns:
    """Middleware, before that of idempotency keys: what was taken back is no answer to keep."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: Any, kwargs: Any
    ) -> HttpResponse | None:
        write = _write(request, view)
        if "dry_run" not in request.GET or not getattr(write, "has_dry_run", False):
            return None
        try:
            require_once(request.GET)
        except Problem as problem:
            return response_for(problem)
        wanted = request.GET["dry_run"]
        if wanted not in ("true", "false"):
            return response_for(invalid([FieldError("dry_run", "wrong_type", "must be true or false")]))
        given = request.GET.copy()
        del given["dry_run"]
        request.GET = given  # type: ignore[assignment]
        if wanted == "false":
            return None
        setattr(request, _MARK, True)
        is_own = "dry_run" in write.query_parameters
        response = view(request, *args, **kwargs) if is_own else _taken_back(lambda: view(request, *args, **kwargs))
        response[HEADER] = "true"
        return response


def is_dry_run(request: Request) -> bool:
    """Whether this view is to say what would follow, and to keep nothing of it."""
    return getattr(request, _MARK, False)


def _write(request: HttpRequest, view: object) -> Any:
    """The method of the view that this request is for, if it is a write of the API."""
    if request.method not in _WRITES or not request.path_info.startswith("/api/v1/"):
        return None
    return getattr(getattr(view, "cls", None), request.method.lower(), None)


def _taken_back(answer: Callable[[], HttpResponse]) -> HttpResponse:
    with transaction.atomic():
        response = answer()
        if hasattr(response, "render"):
            response.render()
        transaction.set_rollback(True)
    if response.status_code == 201:
        response.status_code = 200  # nothing was made
    return response
