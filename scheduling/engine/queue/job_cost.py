"""Says what a job costs: its GPUs by their type, over the sliding window in which tenants' costs are compared."""

from scheduling.engine.board.shapes import is_model
from scheduling.engine.model import Policy, Request

# A job without GPUs is not free of charge.
_MIN_GPUS = 0.1


def window_cost(request: Request, policy: Policy) -> float:
    """GPUs x cost of a GPU-hour x hours of the policy's window, the unit of `Tenant.window_cost`."""
    return max(request.gpu_count, _MIN_GPUS) * gpu_hour_cost(request, policy) * policy.window_seconds / 3600.0


def gpu_hour_cost(request: Request, policy: Policy) -> float:
    """That of the cheapest model that the request names; 1 where it names none that has a cost."""
    if not policy.cost_by_model or not request.gpu_models:
        return 1.0
    named = (cost for model, cost in policy.cost_by_model if any(_is_same(word, model) for word in request.gpu_models))
    return min(named, default=1.0)


def _is_same(word: str, model: str) -> bool:
    """Admins and users may both write the whole name or one word of it."""
    return is_model(word, model) or is_model(model, word)
