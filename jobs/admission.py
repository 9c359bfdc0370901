"""Checks of a request that need to know more than jobs do: registered from above, asked at submit.

Jobs may not import what stands above them, so the scheduler registers its check when it starts (scheduling/apps.py)."""

from collections.abc import Callable

from gpusched.lib.problems import Problem
from gpusched.protocol.jobs import JobRequest

Check = Callable[[JobRequest, int], Problem | None]
_checks: list[Check] = []


def register(check: Check) -> None:
    """`check(request, tenant_id)` gives the problem with a request that can never run, or None."""
    if check not in _checks:
        _checks.append(check)


def require_possible(request: JobRequest, tenant_id: int) -> None:
    """Raises the first problem that a registered check finds."""
    for check in _checks:
        if problem := check(request, tenant_id):
            raise problem
