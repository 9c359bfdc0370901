"""Talk to one replica of the batch protocol: send batches over a stream into its job, and read their results."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from gpusched.protocol.batches import BadFrame, Body, Decoder, Frame, encode_parts
from serving import payloads
from serving.replicas import answers
from serving.requests.claims import Claimed
from serving.requests.results import Outcome

# The results of a batch are in the memory of the web process until they are recorded.
MAX_RESULTS_BYTES = 256 << 20


class Stream(Protocol):
    """Bytes to and from a socket inside a job. `read` returns b"" at the end."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class ReplicaLost(Exception):
    """The connection cannot be used any more; the text is the reason. Its requests in progress have no result."""


class ReplicaExited(ReplicaLost):
    """The replica's program closed the connection or ended."""


class ReplicaUnreachable(ReplicaLost):
    """No web process of this host has the connection of the replica's agent: it is away, or connected to another
    host."""


class ReplicaHung(ReplicaLost):
    """The replica did not answer in time: its job must be replaced."""


@dataclass(frozen=True)
class BatchFailed(Exception):
    """The replica is well, but the batch as a whole has no results."""

    code: str
    message: str


class ReplicaConnection:
    """A connected replica, which works on one batch at a time."""

    def __init__(self, stream: Stream, max_batch: int | None) -> None:
        self.max_batch = max_batch
        self._stream = stream
        self._decoder = Decoder(max(MAX_RESULTS_BYTES, payloads.max_bytes()))
        self._frames: list[Frame] = []
        self._batch = 0

    @classmethod
    async def connect(cls, stream: Stream, timeout_seconds: float) -> "ReplicaConnection":
        """Wait until the replica is ready. Raises ReplicaLost."""
        connection = cls(stream, None)
        hello = await connection._next(timeout_seconds)
        most = hello.values.get("max_batch")
        if hello.kind != "hello" or not (most is None or (isinstance(most, int) and most >= 1)):
            raise ReplicaLost("it does not speak the batch protocol")
        connection.max_batch = most
        return connection

    async def run(self, endpoint: str, requests: Sequence[Claimed], timeout_seconds: float) -> list[Outcome]:
        """Return the outcome of each request. Raises BatchFailed, and ReplicaLost if the replica hangs or breaks."""
        self._batch += 1
        bodies = [Body(request.payload, request.payload_type) for request in requests]
        limits = {"max_result_bytes": payloads.max_bytes(), "max_results_bytes": MAX_RESULTS_BYTES}
        frame = Frame("batch", {"batch": self._batch, "endpoint": endpoint, **limits}, bodies)
        try:
            async with asyncio.timeout(timeout_seconds):
                # A write waits while the replica does not read, so that no more than a body is copied at once.
                for part in encode_parts(frame):
                    await self._stream.write(part)
        except (OSError, TimeoutError) as error:
            raise ReplicaLost(f"the batch could not be sent: {error}") from error
        answer = await self._next(timeout_seconds, self._batch)
        if answer.kind == "failed":
            code, message = answer.values.get("code"), answer.values.get("message")
            raise BatchFailed(answers.code(code), answers.message(message))
        if answer.kind != "results" or len(answer.bodies) != len(requests):
            raise BatchFailed("wrong_number_of_results", f"{len(answer.bodies)} results for {len(requests)} requests")
        return [answers.outcome(request, body) for request, body in zip(requests, answer.bodies, strict=True)]

    async def lost(self) -> NoReturn:
        """Wait, while no batch runs, until the connection ends; then raise ReplicaLost. The wait may be cancelled."""
        try:
            data = await self._stream.read()
        except OSError as error:
            raise ReplicaLost(str(error)) from error
        if not data:
            raise ReplicaExited("it closed the connection")
        raise ReplicaLost("it sent a message without a batch")

    def close(self) -> None:
        self._stream.close()

    async def _next(self, timeout_seconds: float, batch: int | None = None) -> Frame:
        """Return the next frame. `batch`: the next one about this batch; others do not extend the time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    while not self._frames:
                        data = await self._stream.read()
                        if not data:
                            raise ReplicaExited("it closed the connection")
                        self._frames += self._decoder.feed(data)
                    frame = self._frames.pop(0)
                    if batch is None or frame.values.get("batch") == batch:
                        return frame
        except TimeoutError as error:
            raise ReplicaHung(f"it did not answer within {timeout_seconds:g} s") from error
        except (OSError, BadFrame) as error:
            raise ReplicaLost(str(error)) from error
