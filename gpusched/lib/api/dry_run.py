"""`?dry_run=true` on any write of the API: execute it, answer, and roll it back.

Views that return an effect or a simulation instead declare the parameter themselves, and call `is_dry_run`."""

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
    """Middleware. It comes before that of idempotency keys, which must not store answers of dry runs."""

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
        value = request.GET["dry_run"]
        if value not in ("true", "false"):
            return response_for(invalid([FieldError("dry_run", "wrong_type", "must be true or false")]))
        query = request.GET.copy()
        del query["dry_run"]
        request.GET = query  # type: ignore[assignment]
        if value == "false":
            return None
        setattr(request, _MARK, True)
        is_own = "dry_run" in write.query_parameters
        response = view(request, *args, **kwargs) if is_own else _rolled_back(lambda: view(request, *args, **kwargs))
        response[HEADER] = "true"
        return response


def is_dry_run(request: Request) -> bool:
    """Return whether this view must only describe the effect of the write."""
    return getattr(request, _MARK, False)


def _write(request: HttpRequest, view: object) -> Any:
    """Return the method of the view for this request if it is a write of the API."""
    if request.method not in _WRITES or not request.path_info.startswith("/api/v1/"):
        return None
    return getattr(getattr(view, "cls", None), request.method.lower(), None)


def _rolled_back(answer: Callable[[], HttpResponse]) -> HttpResponse:
    with transaction.atomic():
        response = answer()
        if hasattr(response, "render"):
            response.render()
        transaction.set_rollback(True)
    if response.status_code == 201:
        response.status_code = 200  # nothing was created
    return response
