"""Frames between the control plane and a replica that serves batches: a JSON header, then bodies. It runs inside jobs,
so it needs only the standard library.

A frame is the length of its header (4 bytes, big-endian), the header, and the bodies that it lists in `bodies`.
Control plane to replica: `batch`. Replica to control plane: `hello` once, then one `results` or `failed` per batch."""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

SOCKET_NAME = "serve.sock"
JSON, BYTES = "application/json", "application/octet-stream"
MAX_HEADER_BYTES, MAX_BODIES_BYTES = 4 << 20, 1 << 30
_LARGE_BYTES = 256 << 10
_LENGTH = struct.Struct(">I")


class BadFrame(ValueError):
    """The peer sent something else than a frame."""


@dataclass(frozen=True)
class Body:
    """Bytes with their media type. `error`: the code of a failed request, and `data` its message."""

    data: bytes
    type: str = JSON
    error: str = ""


@dataclass(frozen=True)
class Frame:
    """`kind`: hello, batch, results or failed. `values`: the other entries of the header."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    bodies: Sequence[Body] = ()


def encode(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    return b"".join(encode_parts(frame))


def encode_parts(frame: Frame) -> Iterator[bytes]:
    """Yield a frame as bytes: everything small in one part, and each large body, which is not copied."""
    listed = [{"type": body.type, "length": len(body.data), "error": body.error} for body in frame.bodies]
    header = json.dumps({**frame.values, "kind": frame.kind, "bodies": listed}).encode()
    small = bytearray(_LENGTH.pack(len(header)) + header)
    for body in frame.bodies:
        if len(body.data) > _LARGE_BYTES:
            if small:
                yield bytes(small)
                small.clear()
            yield body.data
        else:
            small += body.data
    if small:
        yield bytes(small)


class Decoder:
    """Turn bytes, in any pieces, into frames. Raises BadFrame."""

    def __init__(self, max_bodies_bytes: int = MAX_BODIES_BYTES) -> None:
        self._max_bodies_bytes = max_bodies_bytes
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes; yield the frames that are complete now."""
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if self._header is None:
            if len(self._buffer) < _LENGTH.size:
                return None
            [size] = _LENGTH.unpack_from(self._buffer)
            if size > MAX_HEADER_BYTES:
                raise BadFrame(f"a header of {size} bytes")
            if len(self._buffer) < _LENGTH.size + size:
                return None
            self._header = _header(bytes(self._buffer[_LENGTH.size : _LENGTH.size + size]), self._max_bodies_bytes)
            del self._buffer[: _LENGTH.size + size]
        listed = self._header["bodies"]
        if len(self._buffer) < sum(entry["length"] for entry in listed):
            return None
        bodies, start = [], 0
        for entry in listed:
            data = bytes(self._buffer[start : start + entry["length"]])
            bodies.append(Body(data, entry["type"], entry["error"]))
            start += entry["length"]
        del self._buffer[:start]
        values = {name: value for name, value in self._header.items() if name not in ("kind", "bodies")}
        frame, self._header = Frame(self._header["kind"], values, bodies), None
        return frame


def _header(raw: bytes, max_bodies_bytes: int) -> dict[str, Any]:
    try:
        header = json.loads(raw)
        listed = [(entry["type"], entry["length"], entry["error"]) for entry in header["bodies"]]
        is_valid = isinstance(header["kind"], str) and all(
            isinstance(kind, str) and type(length) is int and length >= 0 and isinstance(error, str)
            for kind, length, error in listed
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadFrame(f"a header that is not one: {error}") from error
    if not is_valid or sum(length for _, length, _ in listed) > max_bodies_bytes:
        raise BadFrame("a header with wrong entries")
    return dict(header)
