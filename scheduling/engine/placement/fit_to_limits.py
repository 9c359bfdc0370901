"""Moves a placement that would exceed a limit to where it counts less: other models, less device memory."""

from collections.abc import Callable
from dataclasses import replace

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape, is_model
from scheduling.engine.limits.accounts import Accounts, ExceededLimit
from scheduling.engine.limits.quotas import Use
from scheduling.engine.model import Job, Policy, RankPlacement
from scheduling.engine.placement.placement import place, place_cheapest

Ranks = tuple[RankPlacement, ...]


def fit_to_limits(
    board: Board,
    shape: Shape,
    ranks: Ranks,
    blocked: Callable[[Ranks], tuple[Use, ExceededLimit | None]],
    without_exhausted_models: Callable[[], Shape],
) -> tuple[Ranks, Use, ExceededLimit | None]:
    """Return the placement, or another for the same request, its use of the limits, and the limit that it still
    exceeds.

    `blocked`: returns the use of a placement and the limit that it would exceed; `without_exhausted_models`: returns
    the shape as `avoid_exhausted_models` does.
    """
    use, block = blocked(ranks)
    if block is not None and block.dimension.model:
        shape = without_exhausted_models()
        ranks = place(board, shape) or ranks
        use, block = blocked(ranks)
    if block is not None:
        ranks = place_cheapest(board, shape) or ranks
        use, block = blocked(ranks)
    return ranks, use, block


def avoid_exhausted_models(accounts: Accounts, board: Board, policy: Policy, job: Job, shape: Shape) -> Shape:
    """Return the request on other models than those of which a limit leaves too few; unchanged if it requires one of
    these.

    A job is not spread over such a model and others to use up the rest of the limit.
    """
    exhausted_models = accounts.exhausted_models(job)
    if not exhausted_models:
        return shape
    models = sorted({board.kinds[number].model for number in shape.kinds})
    other_models = tuple(model for model in models if not any(is_model(word, model) for word in exhausted_models))
    return Shape(replace(shape.request, gpu_models=other_models), board, policy) if other_models else shape
