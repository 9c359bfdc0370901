"""Find the node of a rank, and check that it can be reached by a stream."""

from dataclasses import dataclass
from typing import Any

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.db.sql import query
from gpusched.protocol.agent_messages import rank_key
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.states import JobState, RankState
from gpusched.protocol.streams import SOCKET_NAME, Open
from jobs.actions import array_actions
from tenants.auth.identity import Identity

_RANK = """
    SELECT j.tenant_id, j.user_id, j.state, j.attempt, j.array_count, s.node_id, s.state AS rank_state
      FROM jobs_all j LEFT JOIN nodes_assignment s ON s.job_id = j.id AND s.number = j.attempt AND s.rank = %s
     WHERE j.id = %s
"""


@dataclass(frozen=True)
class Target:
    """The target of a stream: a TCP port or a Unix socket of one rank of a job's present attempt."""

    job_id: int
    rank: int = 0
    port: int | None = None
    socket: str | None = None

    def require_valid(self) -> None:
        """Raise a 400 that names the wrong field."""
        if (self.port is None) == (self.socket is None):
            raise invalid([FieldError("port", "invalid", "needs either port or socket")])
        if self.port is not None and not 1 <= self.port <= 65_535:
            raise invalid([FieldError("port", "out_of_range", "must be from 1 to 65535")])
        if self.socket is not None and not SOCKET_NAME.match(self.socket):
            rule = "must be a file name of up to 48 letters, digits, dots, dashes and underscores"
            raise invalid([FieldError("socket", "invalid", rule)])
        if not 0 <= self.rank < 1 << 31:
            raise invalid([FieldError("rank", "out_of_range", "must be the number of a rank, from 0")])

    @property
    def described(self) -> dict[str, Any]:
        """Return the target for the audit log."""
        where = {"port": self.port} if self.port is not None else {"socket": self.socket}
        return {"rank": self.rank, **where}


@dataclass(frozen=True)
class Located:
    """A rank that runs on a node."""

    job_id: int
    attempt: int
    node_id: int
    opening: Open


def locate(target: Target, identity: Identity | None = None) -> Located:
    """Find a running rank. Raises a 404, a 403 or a 409; with an `identity`, as for a signal to the job."""
    rows = query(_RANK, [target.rank, target.job_id])
    subject = f"job {target.job_id}"
    if not rows:
        raise not_found(subject)
    job = rows[0]
    if identity is not None:
        identity.require(identity.role_for(job["user_id"]), job["tenant_id"], subject)
    array_actions.require_no_array(target.job_id, job, "use the id of one of its elements")
    if job["state"] != JobState.RUNNING:
        detail = f"only a running job can be reached; {subject} is {job['state']}"
        raise Problem(409, "wrong_state", detail, next_step="see its state")
    if job["node_id"] is None:
        raise Problem(404, "not_found", f"{subject} has no rank {target.rank}", next_step="count its ranks from 0")
    if job["rank_state"] != RankState.RUNNING:
        detail = f"rank {target.rank} of {subject} is {job['rank_state']}"
        raise Problem(409, "wrong_state", detail, next_step="see its state")
    key = rank_key(target.job_id, job["attempt"], target.rank)
    opening = Open(key=key, port=target.port, socket=target.socket)
    return Located(target.job_id, job["attempt"], job["node_id"], opening)
