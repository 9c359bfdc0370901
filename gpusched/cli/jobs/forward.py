"""The command `forward`: make a port of a running job a local port."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.client import Client
    from gpusched.client.errors import GpuschedError
    from gpusched.client.streams import JobStream

_PIECE_BYTES = 64 << 10
# After these refusals no later connection can succeed; after those of an attempt, one can if the job runs again.
_FINAL = frozenset({"not_found", "not_authenticated", "not_permitted", "scope_missing"})
_OF_ATTEMPT = frozenset({"rank_ended", "wrong_state"})


def forward(
    ctx: typer.Context,
    job_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    ports: Annotated[str, typer.Argument(metavar="[LOCAL:]PORT", show_default=False)],
    rank: Annotated[int, typer.Option(min=0, help="The rank of the job.")] = 0,
) -> None:
    """Reach a port of a running job at 127.0.0.1 of this machine.

    \b
    gpusched forward 42 8888
    gpusched forward 42 9000:8888
    gpusched forward 42 9000:api.sock

    The job must listen on 127.0.0.1 or on all addresses; PORT can also be the name of a Unix socket in the job's
    GPUSCHED_SOCKET_DIR. LOCAL 0 takes a free port. Ends with Ctrl-C, or at the first
    connection after the end of the job.
    """
    local, port, socket = _parsed(ports)
    with connect(ctx) as client:
        job = client.get(job_id)
        if job.is_final:
            raise typer.BadParameter(f"job {job_id} has ended: it is {job.state}")
        raise asyncio.run(_Forwarding(client, job_id, rank, port, socket).run(local))


def _parsed(ports: str) -> tuple[int, int | None, str | None]:
    """Return the local port, and the job's port or socket."""
    local, colon, target = ports.rpartition(":")
    if not colon:
        local = target
    is_port = target.isascii() and target.isdigit()
    if not (local.isascii() and local.isdigit()) or int(local) > 65_535 or (is_port and not 0 < int(target) <= 65_535):
        raise typer.BadParameter(f"{ports!r} must be PORT, LOCAL:PORT or LOCAL:SOCKET, with ports up to 65535")
    return int(local), int(target) if is_port else None, None if is_port else target


class _Forwarding:
    """Connections of this machine, each with its own stream into the job."""

    def __init__(self, client: "Client", job_id: int, rank: int, port: int | None, socket: str | None) -> None:
        self._client, self._job_id, self._rank = client, job_id, rank
        self._port, self._socket = port, socket
        self._ended: asyncio.Future[GpuschedError] | None = None

    async def run(self, local: int) -> "GpuschedError":
        """Forward until the job can no longer be reached; return why."""
        ended: asyncio.Future[GpuschedError] = asyncio.get_running_loop().create_future()
        self._ended = ended
        try:
            server = await asyncio.start_server(self._serve, "127.0.0.1", local)
        except OSError as error:
            raise typer.BadParameter(f"127.0.0.1:{local} cannot be used: {error.strerror}") from error
        async with server:
            number = server.sockets[0].getsockname()[1]
            messages.note(f"127.0.0.1:{number} is {self._port or self._socket} of job {self._job_id}; Ctrl-C ends it")
            return await ended

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._connect(reader, writer)
        except OSError:
            pass  # the local program has closed its connection
        except asyncio.CancelledError:
            pass  # this command ends; asyncio of Python 3.11 prints a traceback for each connection that is cancelled
        finally:
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from gpusched.client.errors import GpuschedError
        from gpusched.client.streams import open_stream

        try:
            stream = await open_stream(
                self._client, self._job_id, port=self._port, socket=self._socket, rank=self._rank
            )
            async with stream:
                await asyncio.gather(_upload(reader, stream), _download(stream, writer))
        except GpuschedError as error:
            final = await self._final(error)
            if final is None:
                messages.failure(error)
            elif self._ended is not None and not self._ended.done():
                self._ended.set_result(final)

    async def _final(self, error: "GpuschedError") -> "GpuschedError | None":
        """Return why no later connection can succeed; None: one may."""
        from gpusched.client.errors import Conflict, GpuschedError

        if error.code not in _OF_ATTEMPT:
            return error if error.code in _FINAL else None
        try:
            job = await asyncio.to_thread(self._client.get, self._job_id)
        except GpuschedError:
            return None
        return Conflict(f"job {job.id} has ended: it is {job.state}") if job.is_final else None


async def _upload(reader: asyncio.StreamReader, stream: "JobStream") -> None:
    while data := await reader.read(_PIECE_BYTES):
        await stream.write(data)
    await stream.end()


async def _download(stream: "JobStream", writer: asyncio.StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
