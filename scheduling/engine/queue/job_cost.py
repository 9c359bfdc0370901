"""Computes the cost of a job: its GPUs by their type, over the sliding window in which tenants' costs are compared."""

from scheduling.engine.board.shapes import is_model
from scheduling.engine.model import Policy, Request

# A job without GPUs is not free of charge.
_MIN_GPUS = 0.1


def window_cost(request: Request, policy: Policy) -> float:
    """Return GPUs x cost of a GPU-hour x hours of the policy's window, the unit of `Tenant.window_cost`."""
    return max(request.gpu_count, _MIN_GPUS) * gpu_hour_cost(request, policy) * policy.window_seconds / 3600.0


def gpu_hour_cost(request: Request, policy: Policy) -> float:
    """Return the cost of the cheapest model that the request names; 1 if it names none that has a cost."""
    if not policy.cost_by_model or not request.gpu_models:
        return 1.0
    named = (cost for model, cost in policy.cost_by_model if any(_is_same(word, model) for word in request.gpu_models))
    return min(named, default=1.0)


def _is_same(word: str, model: str) -> bool:
    """Return whether both name one model: admins and users may write the full name or one word of it."""
    return is_model(word, model) or is_model(model, word)
