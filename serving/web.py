"""Serving in this web process: connect the hub to the agents' streams and to the jobs of replicas."""

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.batches import SOCKET_NAME
from gpusched.protocol.streams import Reason, StreamReset
from jobs.actions import job_actions
from nodes.streams.agents import registry
from nodes.streams.opening import open_stream
from nodes.streams.stream import Stream
from serving.hub import ServingHub
from serving.openai.service import OpenAIService
from serving.replicas.connection import ReplicaExited, ReplicaLost, ReplicaUnreachable
from tenants.auth.identity import identity_of_server

# Ends of a stream that the program of the replica causes.
_EXITS = frozenset({Reason.BROKEN, Reason.RANK_ENDED})


class ReplicaStream:
    """A stream to a replica that reports its end as ReplicaLost."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        try:
            return await self._stream.read()
        except StreamReset as error:
            raise (ReplicaExited if error.reason in _EXITS else ReplicaLost)(str(error)) from error

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except StreamReset as error:
            raise ReplicaLost(str(error)) from error

    def close(self) -> None:
        self._stream.close()

    @property
    def is_quiet(self) -> bool:
        return self._stream.is_quiet


async def open_replica(job_id: int) -> ReplicaStream:
    """Open a stream to the socket of gpusched.serve in a job. Raises ReplicaLost, also while it is not ready."""
    try:
        return ReplicaStream(await open_stream(job_id, socket=SOCKET_NAME))
    except Problem as problem:
        raise ReplicaLost(problem.detail) from problem


async def open_port(job_id: int, port: int) -> ReplicaStream:
    """Open a stream to a TCP port of a job. Raises ReplicaLost."""
    try:
        return ReplicaStream(await open_stream(job_id, port=port))
    except Problem as problem:
        kind = ReplicaUnreachable if problem.code == "node_unreachable" else ReplicaLost
        raise kind(problem.detail) from problem


def replace_replica(job_id: int) -> None:
    """Stop the job of a replica that hangs; the load then starts another one."""
    rows = query(
        "UPDATE serving_replica SET is_draining = true WHERE job_id = %s AND NOT is_draining RETURNING job_id",
        [job_id],
    )
    for row in rows:
        job_actions.cancel(row["job_id"], identity_of_server())


serving = ServingHub(open_replica, registry.nodes, replace_replica)
openai = OpenAIService(open_port, registry.nodes, replace_replica, serving.dispatcher_id)
