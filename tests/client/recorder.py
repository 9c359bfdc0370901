"""A TCP server that records every byte that it gets, and answers each HTTP request alike."""

import json
import socket
import threading
from typing import Any, Self


class Recorder:
    """`received` has the bytes of all connections. `answer`: status and JSON."""

    def __init__(self, status: int, answer: Any) -> None:
        self.received = b""
        self.status, self.answer = status, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def bodies(self) -> list[Any]:
        """Return the JSON bodies of the requests."""
        return [json.loads(part.rpartition(b"\r\n\r\n")[2]) for part in self.received.split(b"POST ") if part]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            request = b""
            while data := connection.recv(1 << 16):
                self.received += data
                request += data
                head, separator, body = request.partition(b"\r\n\r\n")
                lengths = [
                    line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                ]
                if separator and len(body) >= int(lengths[0] if lengths else 0):
                    text = json.dumps(self.answer).encode()
                    connection.sendall(
                        f"HTTP/1.1 {self.status} X\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(text)}\r\n\r\n".encode() + text
                    )  # fmt: skip
                    request = b""
