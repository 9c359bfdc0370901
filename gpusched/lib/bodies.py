"""Refuses the body of a request that is too large before it is read: by its Content-Length, or, sent in chunks, at the
limit (413). Daphne itself keeps every body whole before anybody may look at it."""

from daphne import http_protocol
from django.conf import settings

from gpusched.lib.api.problems import too_large
from gpusched.lib.heads import answer_and_leave


class BoundedRequest(http_protocol.WebRequest):  # type: ignore[misc]
    """Twisted calls these while the request arrives, in this order. Their names are its own."""

    _taken = 0
    _is_refused = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        """The headers are there. `length` None: in chunks."""
        super().gotLength(length)
        if length is not None and length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        self._taken += len(data)
        if self._taken > settings.DATA_UPLOAD_MAX_MEMORY_SIZE and not self._is_refused:
            self._refuse()
        if not self._is_refused:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:  # noqa: N802
        """All of it is there. Of what came in chunks the length is told, or Django REST framework reads nothing."""
        if self._is_refused:
            self.channel.loseConnection()
        else:
            if self._taken and self.requestHeaders.hasHeader(b"transfer-encoding"):
                self.requestHeaders.removeHeader(b"transfer-encoding")
                self.requestHeaders.setRawHeaders(b"content-length", [b"%d" % self._taken])
            super().requestReceived(command, path, version)

    def _refuse(self) -> None:
        self._is_refused = True
        self.content.truncate(0)
        self.requestHeaders.removeHeader(b"expect")  # nobody is to be told to continue
        answer_and_leave(self.channel, too_large())


def bound() -> None:
    """From now on Daphne takes its requests so."""
    http_protocol.WebRequest = BoundedRequest
