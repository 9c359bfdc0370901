"""Trace the launch of each rank: from its order to the first instruction of its process."""

import time

from gpusched import tracing
from gpusched.agent.ranks.rank_state import RankState
from gpusched.json_log import rank_fields
from gpusched.protocol.agent_messages import Run


def begin(rank: RankState, order: Run, received_at: float) -> None:
    """Remember when the first order to start this rank came, by the monotonic clock."""
    if tracing.is_on() and rank.ordered_at is None:
        rank.ordered_at, rank.traceparent = received_at, order.spec.traceparent


def end(rank: RankState, node: str) -> None:
    """Record the launch, once, when the rank has started or can no longer start."""
    if rank.ordered_at is None or (fact := rank.started or rank.ended) is None:
        return
    began_at, rank.ordered_at = rank.ordered_at, None
    now = time.monotonic()
    wall = time.time() - now
    ended_at = now - (fact.seconds_ago or 0.0)
    error = "" if rank.started or rank.ended is None else rank.ended.reason
    attributes = {f"gpusched.{name}": value for name, value in rank_fields(rank.key, node).items()}
    tracing.record("launch", wall + began_at, wall + ended_at, attributes, traceparent=rank.traceparent, error=error)
