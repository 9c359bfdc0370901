"""Moves a placement that would exceed a limit to where the job takes less of it: other models, less device memory."""

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
    spared: Callable[[], Shape],
) -> tuple[Ranks, Use, ExceededLimit | None]:
    """The placement, or another for the same request, what it takes, and the limit that stops it even so.

    `blocked`: what a placement takes, and the limit that it would exceed; `spared`: see below.
    """
    use, block = blocked(ranks)
    if block is not None and block.dimension.model:
        shape = spared()
        ranks = place(board, shape) or ranks
        use, block = blocked(ranks)
    if block is not None:
        ranks = place_cheapest(board, shape) or ranks
        use, block = blocked(ranks)
    return ranks, use, block


def spared(accounts: Accounts, board: Board, policy: Policy, job: Job, shape: Shape) -> Shape:
    """The request on other models than those of which a limit leaves fewer than it wants; itself where it has to have
    one of these. A job is not spread over such a model and others to use up what the limit leaves."""
    words = accounts.exhausted_models(job)
    if not words:
        return shape
    models = sorted({board.kinds[number].model for number in shape.kinds})
    others = tuple(model for model in models if not any(is_model(word, model) for word in words))
    return Shape(replace(shape.request, gpu_models=others), board, policy) if others else shape
