"""The small control plane with a WebSocket, and with the failures of a real one."""

from http.server import BaseHTTPRequestHandler
from itertools import count
from threading import Lock
from typing import Any

import msgspec
from msgspec.structs import replace
from websockets.frames import Opcode
from websockets.server import ServerProtocol

from gpusched.protocol import streams
from gpusched.protocol.agent_messages import BOOT_HEADER, Sync
from gpusched.protocol.streams import WINDOW_BYTES, Endpoint, Open
from tests.agent.control import Control, eventually

NOT_AUTHENTICATED = 4401


class OpenedStream:
    """A stream to a rank. Tests call it from their thread, the connection's thread carries its frames."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.lock = endpoint, Lock()

    def write(self, data: bytes) -> None:
        while data:
            eventually(lambda: self.endpoint.room or self.endpoint.over, 10, "room in the stream")
            with self.lock:
                size = min(self.endpoint.room, len(data))
                self.endpoint.write(data[:size])
            data = data[size:]

    def end(self) -> None:
        with self.lock:
            self.endpoint.end()

    def read(self, size: int, seconds: float = 10) -> bytes:
        """Read exactly this much, or less at the end."""
        data = bytearray()

        def is_complete() -> bool:
            with self.lock:
                data.extend(self.endpoint.read(size - len(data)))
                return len(data) == size or self.endpoint.is_at_end or self.endpoint.over is not None

        eventually(is_complete, seconds, f"{size} bytes of the stream")
        return bytes(data)

    def reason(self) -> str:
        """Why the stream was refused or has broken."""
        eventually(lambda: self.endpoint.over, 10, "the end of the stream")
        assert self.endpoint.over is not None
        return self.endpoint.over.reason


class SocketControl(Control):
    """`has_socket`: false answers 404 as a proxy does that knows no WebSockets. `refusals`: how many messages are still
    refused as those of an unknown node. `is_refusing_logs`: answers 503 to output of jobs. `is_dropping_logs`: breaks
    the connection instead. `page`: answers this with 200 to everything, as a login page of a proxy. `has_numbers`: false
    answers as if no message were written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_socket, self.refusals, self.page = True, 0, b""
        self.is_refusing_logs = self.is_dropping_logs = False
        self.has_numbers = True
        self.streams: dict[int, OpenedStream] = {}
        self.raw_frames: list[bytes] = []  # sent as they are
        self.has_stream_header = False
        self.boot_id = ""
        self._stream_ids = count(1)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # agents are killed here

    def open_stream(self, key: str, **target: Any) -> OpenedStream:
        stream = OpenedStream(Endpoint(next(self._stream_ids), Open(key=key, **target)))
        self.streams[stream.endpoint.stream_id] = stream
        return stream

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self.page:
            return 200, self.page
        if path == "/agent/sync" and self.refusals:
            self.refusals -= 1
            return 401, b"{}"
        if path.startswith("/agent/logs") and self.is_refusing_logs:
            return 503, b"{}"
        if path.startswith("/agent/logs") and self.is_dropping_logs:
            raise ConnectionAbortedError
        return super().answer(path, body)

    def upgrade(self, request: BaseHTTPRequestHandler) -> None:
        if not self.has_socket:
            request.send_error(404)
            return
        request.close_connection = True
        protocol = ServerProtocol()
        headers = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        protocol.receive_data(f"{request.requestline}\r\n{headers}\r\n".encode())
        [handshake] = protocol.events_received()
        protocol.send_response(protocol.accept(handshake))  # type: ignore[arg-type]
        try:
            self._converse(request, protocol)
        except OSError:
            return  # the agent is gone

    def _converse(self, request: BaseHTTPRequestHandler, protocol: ServerProtocol) -> None:
        self.has_stream_header = request.headers.get(streams.HEADER) == streams.HEADER_VALUE
        self.boot_id = request.headers.get(BOOT_HEADER, "")
        is_admitted = self.admits("/ws/agent/", request.headers.get("Authorization", ""))
        request.connection.settimeout(0.005)
        while True:
            self._send_frames(protocol)
            for data in protocol.data_to_send():
                if not data:
                    return
                request.connection.settimeout(30)
                request.connection.sendall(data)
                request.connection.settimeout(0.005)
            try:
                data = request.connection.recv(1 << 20)
            except TimeoutError:
                continue
            protocol.receive_data(data) if data else protocol.receive_eof()
            for frame in protocol.events_received():
                self._receive(protocol, frame, is_admitted)

    def _receive(self, protocol: ServerProtocol, frame: Any, is_admitted: bool) -> None:
        if frame.opcode == Opcode.BINARY:
            stream_id, kind, payload = streams.decode(bytes(frame.data))
            if (stream := self.streams.get(stream_id)) is not None:
                with stream.lock:
                    stream.endpoint.receive(kind, payload)
        if frame.opcode != Opcode.TEXT:
            return
        if self.refusals or not is_admitted:
            self.refusals = max(0, self.refusals - 1)
            protocol.send_close(NOT_AUTHENTICATED)
        else:
            with self._lock:
                desired = self._handle_sync(msgspec.json.decode(frame.data, type=Sync))
            desired = desired if self.has_numbers else replace(desired, seq=0)
            protocol.send_text(self.page or msgspec.json.encode(desired))

    def _send_frames(self, protocol: ServerProtocol) -> None:
        while self.raw_frames:
            protocol.send_binary(self.raw_frames.pop(0))
        sent = 0
        for stream in list(self.streams.values()):
            with stream.lock:
                while stream.endpoint.has_frame and sent < WINDOW_BYTES:
                    frame = stream.endpoint.next_frame()
                    protocol.send_binary(frame)
                    sent += len(frame)
