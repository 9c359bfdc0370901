"""Record when running attempts last saved their work. Preemption computes the lost work from that."""

from collections.abc import Sequence

from gpusched.lib.db.sql import columns
from gpusched.lib.db.sql import rows as read
from gpusched.protocol.agent_messages import parse_rank_key
from jobs.lifecycle import attempts
from nodes.ranks.agent_clock import parse_time

_SAVES = """
    SELECT s.attempt_id, u.at
      FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::bigint[], %s::timestamptz[])
           AS u (job_id, number, rank, node_id, at)
      JOIN nodes_assignment s ON s.job_id = u.job_id AND s.number = u.number AND s.rank = u.rank
           AND s.node_id = u.node_id AND s.state = 'running'
"""


def record_checkpoints(saves: Sequence[tuple[int, str, str]]) -> int:
    """Record (node, rank key, time) of any number of nodes. Return how many attempts have a newer checkpoint. Ignore
    ranks that do not run on that node; a time in the future becomes now."""
    rows = [(*key, node_id, parse_time(at)) for node_id, text, at in saves if (key := parse_rank_key(text)) is not None]
    return attempts.record_saves(read(_SAVES, columns(rows, 5))) if rows else 0
