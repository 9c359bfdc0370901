"""Open byte streams to ranks: over an agent's connection to this web process, or to another one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.conf import settings

from gpusched.lib.api.problems import Problem, database_away
from gpusched.lib.db.threads import DatabaseAway, run_in_thread
from gpusched.protocol import addresses
from gpusched.protocol.streams import Open, StreamReset
from nodes.streams.agents import registry
from nodes.streams.heads import Heads
from nodes.streams.locate import Located, Target, locate
from nodes.streams.peers import Peers, local, too_old
from nodes.streams.problems import problem_of, unreachable
from nodes.streams.stream import Stream

T = TypeVar("T")
# The agent gives up a connection to the job's program after five seconds.
OPEN_SECONDS = 10.0
_threads = ThreadPoolExecutor(2, thread_name_prefix="streams")
peers = Peers(registry, Heads(addresses.split(settings.ENV.heads)).ask)


async def open_stream(job_id: int, rank: int = 0, *, port: int | None = None, socket: str | None = None) -> Stream:
    """Open a stream to a TCP port, or a Unix socket in GPUSCHED_SOCKET_DIR, of a running rank.

    For the server's own use: it checks no caller. Raises Problem: 404 or 409 for the job or rank, 409 `not_listening`,
    501 for a node that cannot, 503 if it cannot be reached. The stream ends with the rank; close it in any case."""
    target = Target(job_id, rank, port, socket)
    target.require_valid()
    return await reach(await in_thread(lambda: locate(target)))


async def reach(located: Located) -> Stream:
    """Open a stream to a located rank, and wait until its program has accepted. Raises Problem."""
    opening = located.opening
    stream = await _started(located.node_id, opening)
    try:
        await stream.opened(OPEN_SECONDS)
    except StreamReset as error:
        assert stream.reset is not None
        raise problem_of(stream.reset) from error
    except TimeoutError as error:
        raise unreachable(f"rank {opening.key}") from error
    finally:
        if not stream.is_open:
            stream.close()
    return stream


async def _started(node_id: int, opening: Open) -> Stream:
    if (agent := registry.get(node_id)) is not None:
        if not agent.can_stream:
            raise problem_of(too_old())
        return local(agent, opening)
    if (stream := await peers.start(node_id, opening)) is not None:
        return stream
    raise unreachable(f"rank {opening.key}")


async def in_thread(work: Callable[[], T]) -> T:
    """Run database work, whose Problems are answers and not failures of this process."""

    def outcome() -> T | Problem:
        try:
            return work()
        except Problem as problem:
            return problem

    try:
        result = await run_in_thread(_threads, outcome)
    except DatabaseAway as error:
        raise database_away() from error
    if isinstance(result, Problem):
        raise result
    return result
