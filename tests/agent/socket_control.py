"""The small control plane with a WebSocket, and with the failures of a real one."""

from http.server import BaseHTTPRequestHandler

import msgspec
from websockets.frames import Opcode
from websockets.server import ServerProtocol

from gpusched.protocol.agent_messages import Sync
from tests.agent.control import Control

NOT_AUTHENTICATED = 4401


class SocketControl(Control):
    """`has_socket`: false answers 404 as a proxy does that knows no WebSockets. `refusals`: how many messages are still
    refused as those of an unknown node. `is_refusing_logs`: answers 503 to output of jobs. `is_dropping_logs`: breaks
    the connection instead. `page`: answers this with 200 to everything, as a login page of a proxy."""

    def __init__(self) -> None:
        super().__init__()
        self.has_socket, self.refusals, self.page = True, 0, b""
        self.is_refusing_logs = self.is_dropping_logs = False
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # agents are killed here

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
        while True:
            for data in protocol.data_to_send():
                if not data:
                    return
                request.connection.sendall(data)
            data = request.connection.recv(65536)
            protocol.receive_data(data) if data else protocol.receive_eof()
            for frame in protocol.events_received():
                if frame.opcode != Opcode.TEXT:  # type: ignore[union-attr]
                    continue
                if self.refusals:
                    self.refusals -= 1
                    protocol.send_close(NOT_AUTHENTICATED)
                else:
                    with self._lock:
                        desired = self._handle_sync(msgspec.json.decode(frame.data, type=Sync))  # type: ignore[union-attr]
                    protocol.send_text(self.page or msgspec.json.encode(desired))
