"""Byte streams between a web process and a rank, many over the WebSocket of its agent: frames, flow control and turns.

Binary messages of the agent's WebSocket are frames: `stream id (4 bytes), kind (1 byte), payload`. Text messages stay
Sync and Desired. The server opens streams and chooses their ids. An agent that can carry streams sends `HEADER` at the
handshake; the server sends no frame to an agent without it, and an agent sends none before it got one.

Each direction has its own credit: a sender has at most WINDOW_BYTES on the way that the receiving end has not read. So
a slow reader stops its own writer and no other, and no process in between buffers more than that. Everything here is
free of I/O; both ends and the processes in between use it."""

import re
import struct
from enum import IntEnum, StrEnum
from typing import Protocol

import msgspec

HEADER, HEADER_VALUE = "Gpusched-Streams", "1"
# Both directions of a stream and a piece that is being read stay below 1 MiB in any process.
WINDOW_BYTES = 448 << 10
# Small enough that a report of the agent waits for little data, large enough that few bytes are headers.
MAX_DATA_BYTES = 64 << 10
# A receiver returns credit in few frames, long before the sender runs out of it.
CREDIT_BYTES = WINDOW_BYTES // 4
# With the folder (gpusched/agent/rank_files/socket_dir.py) the path stays within the kernel's 107 bytes.
SOCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}\Z")
_HEAD = struct.Struct("!IB")
_COUNT = struct.Struct("!I")


class Kind(IntEnum):
    OPEN = 1  # an Open: the server asks for a stream
    OPENED = 2  # the agent is connected to the target
    DATA = 3  # 1 to MAX_DATA_BYTES bytes
    CREDIT = 4  # the other end may send so many bytes more
    END = 5  # this end sends nothing more
    RESET = 6  # a Reset: both directions are over at once


class Reason(StrEnum):
    """Why a stream was refused, or ended before both ends had finished."""

    NOT_LISTENING = "not_listening"  # no process of the rank listens there
    NO_RANK = "no_rank"  # the rank does not run on that node
    UNSUPPORTED = "unsupported"  # the node cannot reach such a target of such a rank
    TOO_MANY = "too_many"
    BROKEN = "broken"  # the program in the job closed the connection without reading it to the end
    RANK_ENDED = "rank_ended"
    AGENT_LOST = "agent_lost"
    SERVER_LOST = "server_lost"  # a web process in between ended
    CLOSED = "closed"  # the opener left
    VIOLATION = "violation"  # of this protocol
    FAILED = "failed"  # a defect; the log has it


class Open(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Open a stream to rank `key`: to the TCP `port` on its node's loopback address, or to the Unix socket of that name
    in its folder GPUSCHED_SOCKET_DIR."""

    key: str
    port: int | None = None
    socket: str | None = None


class Reset(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """`detail`: a sentence for the opener. An unknown `reason` comes from a newer version."""

    reason: str
    detail: str = ""


class Violation(Exception):
    """The other end broke the protocol; the text says how."""


class StreamReset(Exception):
    """A stream is over before both ends finished. `reason` is a Reason."""

    def __init__(self, reset: Reset) -> None:
        super().__init__(reset.detail or reset.reason)
        self.reason, self.detail = reset.reason, reset.detail


def encode(stream_id: int, kind: Kind, payload: bytes = b"") -> bytes:
    return _HEAD.pack(stream_id, kind) + payload


def decode(frame: bytes) -> tuple[int, Kind, bytes]:
    """Return (stream id, kind, payload). Raises Violation."""
    try:
        stream_id, kind = _HEAD.unpack_from(frame)
        return stream_id, Kind(kind), frame[_HEAD.size :]
    except (struct.error, ValueError) as error:
        raise Violation(f"a frame is malformed: {error}") from error


def data_bytes(frame: bytes) -> int:
    """Return how many bytes of the stream a well-formed frame carries."""
    return len(frame) - _HEAD.size if frame[4] == Kind.DATA else 0


def renumbered(frame: bytes, stream_id: int) -> bytes:
    """Return a frame for another connection, where its stream has another id."""
    return _HEAD.pack(stream_id, frame[4]) + frame[_HEAD.size :]


def read_open(payload: bytes) -> Open:
    """Return the target of an OPEN. Raises Violation."""
    try:
        target = _decode_open(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Violation(f"OPEN is malformed: {error}") from error
    if (target.port is None) == (target.socket is None):
        raise Violation("OPEN needs a port or a socket")
    return target


_decode_open = msgspec.json.Decoder(Open).decode
_decode_reset = msgspec.json.Decoder(Reset).decode


class Source(Protocol):
    """Frames of one stream that wait for their turn."""

    @property
    def has_frame(self) -> bool: ...

    def next_frame(self) -> bytes: ...


class Turns:
    """The streams of one connection that have frames to send; each in turn sends one."""

    def __init__(self) -> None:
        self._waiting: dict[Source, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, source: Source) -> None:
        """Let a stream take a turn if it has a frame. Harmless when repeated."""
        if source.has_frame:
            self._waiting.setdefault(source)

    def remove(self, source: Source) -> None:
        self._waiting.pop(source, None)

    def next_frame(self) -> bytes:
        """Return the next frame. IndexError without one."""
        while self._waiting:
            source = next(iter(self._waiting))
            del self._waiting[source]
            if source.has_frame:
                frame = source.next_frame()
                self.add(source)
                return frame
        raise IndexError("no frame waits")


class Endpoint:
    """One end of one stream, without I/O. Its owner passes frames to `receive`, and sends what `next_frame` returns
    while `has_frame`. The application writes at most `room` bytes at once; reading returns credit to the other end."""

    def __init__(self, stream_id: int, opening: Open | None = None) -> None:
        """`opening`: the target, at the end that opens the stream. The other end calls `accept` or `reset`."""
        self.stream_id = stream_id
        self.is_open = False
        self.over: Reset | None = None  # why it is over, if it did not end well
        self.is_ended_there = False  # the other end sends nothing more
        self.is_ending = False  # nothing more will be written here
        self._is_ended = False
        self._control: list[bytes] = []
        self._outgoing, self._incoming = bytearray(), bytearray()
        self._credit = 0  # bytes that may still be sent
        self._owed = 0  # bytes read here, for which no credit was returned yet
        self._allowed = WINDOW_BYTES  # bytes that the other end may still send
        if opening is not None:
            self._send(Kind.OPEN, msgspec.json.encode(opening))

    # --- the application ---

    def accept(self) -> None:
        """Answer the opener that the target is connected."""
        if self.over is None:
            self._begin()
            self._send(Kind.OPENED)

    @property
    def room(self) -> int:
        """Return the number of bytes that may be written now."""
        return 0 if self.is_ending or self.over else self._credit - len(self._outgoing)

    def write(self, data: bytes | memoryview) -> None:
        """Queue at most `room` bytes. ValueError for more."""
        if len(data) > self.room:
            raise ValueError(f"{len(data)} bytes do not fit into the room of {self.room}")
        self._outgoing += data

    def end(self) -> None:
        """Send nothing more after what is queued. The other direction goes on."""
        self.is_ending = True

    def reset(self, reason: Reason, detail: str = "") -> None:
        """End both directions now, drop what is queued, and tell the other end why."""
        if self.over is None and not self.is_over:
            self.abandon(reason, detail)
            self._send(Kind.RESET, msgspec.json.encode(self.over))

    def abandon(self, reason: Reason, detail: str = "") -> None:
        """End both directions without a frame: the other end can no longer be reached."""
        if self.over is None and not self.is_over:
            self._fail(Reset(reason=reason, detail=detail))
            self._incoming.clear()

    @property
    def available(self) -> int:
        """Return the number of bytes that can be read now."""
        return len(self._incoming)

    def read(self, limit: int) -> bytes:
        """Return up to `limit` received bytes, and return credit for them; empty if none are here."""
        data = bytes(self._incoming[:limit])
        del self._incoming[:limit]
        self._owed += len(data)
        if self._owed >= CREDIT_BYTES and not self.is_ended_there and self.over is None:
            self._allowed += self._owed
            self._send(Kind.CREDIT, _COUNT.pack(self._owed))
            self._owed = 0
        return data

    @property
    def is_at_end(self) -> bool:
        """Return whether the other end has finished and everything of it was read."""
        return self.is_ended_there and not self._incoming

    @property
    def is_over(self) -> bool:
        """Return whether nothing can be sent or received any more; frames may still wait to be sent."""
        return self.over is not None or (self._is_ended and self.is_ended_there)

    # --- the connection ---

    @property
    def has_frame(self) -> bool:
        if self._control or (self._outgoing and self._credit > 0):
            return True
        return self.is_ending and not self._is_ended and not self._outgoing and self.is_open and self.over is None

    def next_frame(self) -> bytes:
        """Return the next frame. IndexError without one."""
        if self._control:
            return self._control.pop(0)
        if size := min(len(self._outgoing), self._credit, MAX_DATA_BYTES):
            frame = encode(self.stream_id, Kind.DATA, bytes(self._outgoing[:size]))
            del self._outgoing[:size]
            self._credit -= size
            return frame
        if not self.has_frame:
            raise IndexError("no frame waits")
        self._is_ended = True
        return encode(self.stream_id, Kind.END)

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Take a frame of the other end. Raises Violation; then reset the stream. Frames after its end are ignored:
        they crossed a RESET."""
        if self.over is not None:
            return
        if kind is Kind.DATA:
            self._receive_data(payload)
        elif kind is Kind.CREDIT:
            self._receive_credit(payload)
        elif kind is Kind.END:
            self._require(self.is_open and not self.is_ended_there, "END is out of place")
            self.is_ended_there = True
        elif kind is Kind.RESET:
            try:
                self._fail(_decode_reset(payload))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise Violation(f"RESET is malformed: {error}") from error
        else:
            self._require(kind is Kind.OPENED and not self.is_open, f"{kind.name} is out of place")
            self._begin()

    def _receive_data(self, payload: bytes) -> None:
        self._require(self.is_open and not self.is_ended_there, "DATA is out of place")
        self._require(0 < len(payload) <= MAX_DATA_BYTES, "DATA has a wrong size")
        self._require(len(payload) <= self._allowed, "DATA is beyond the credit")
        self._allowed -= len(payload)
        self._incoming += payload

    def _receive_credit(self, payload: bytes) -> None:
        self._require(self.is_open and len(payload) == _COUNT.size, "CREDIT is out of place")
        self._credit += _COUNT.unpack(payload)[0]
        self._require(self._credit <= WINDOW_BYTES, "CREDIT is beyond the window")

    def _begin(self) -> None:
        self.is_open, self._credit = True, WINDOW_BYTES

    def _send(self, kind: Kind, payload: bytes = b"") -> None:
        self._control.append(encode(self.stream_id, kind, payload))

    def _fail(self, reset: Reset) -> None:
        """End both directions. What the other end sent before its RESET can still be read."""
        self.over = reset
        self._control.clear()
        self._outgoing.clear()

    @staticmethod
    def _require(is_met: bool, rule: str) -> None:
        if not is_met:
            raise Violation(rule)
