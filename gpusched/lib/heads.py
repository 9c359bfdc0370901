"""Refuses a request whose head is malformed or too long in the one shape of errors: Twisted itself would close the
connection without a word, or answer 400 and nothing else."""

import uuid
from http import HTTPStatus
from typing import Any

import msgspec
from twisted.internet import reactor
from twisted.web import http

from gpusched.lib import request_id
from gpusched.lib.api.problems import Problem, body
from gpusched.lib.limits import MAX_HEAD_BYTES

# What the client still sends is thrown away for so long: of a connection closed at once, it would lose the answer.
LINGER_SECONDS = 2.0


class TellingChannel(http.HTTPChannel):
    """Twisted calls these of a connection. Their names are its own."""

    MAX_LENGTH = totalHeadersSize = MAX_HEAD_BYTES  # noqa: N815
    _is_refused = False

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """While none of the request is understood, that line is the one with the address."""
        self._refuse(414 if vars(self).get("_HTTPChannel__first_line", True) else 431)

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802
        self._refuse(431 if self._receivedHeaderSize > self.totalHeadersSize else 400)

    def _refuse(self, status: int) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        link: Any = self
        link.dataReceived = link.lineReceived = link.rawDataReceived = lambda *_: None
        answer_and_leave(link, _PROBLEMS[status])


_KIB = MAX_HEAD_BYTES >> 10
_SHORTER = f"send an address and headers of at most {_KIB} KiB together"
_PROBLEMS = {
    400: Problem(400, "bad_request", "this is no request of HTTP/1.1", next_step="correct its first line and headers"),
    414: Problem(414, "address_too_long", f"the address has more than {_KIB} KiB", next_step=_SHORTER),
    431: Problem(431, "headers_too_long", f"the headers have more than {_KIB} KiB", next_step=_SHORTER),
}


def answer_and_leave(channel: Any, problem: Problem) -> None:
    """The last answer of a connection, where no request has begun that could give one."""
    channel.transport.write(_whole_answer(problem))
    later: Any = reactor
    later.callLater(LINGER_SECONDS, lambda: channel.transport and channel.loseConnection())


def _whole_answer(problem: Problem) -> bytes:
    named = uuid.uuid4().hex[:16]
    text = msgspec.json.encode({**body(problem), "request_id": named})
    head = (
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(text)}",
        f"{request_id.HEADER}: {named}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + text


def bound() -> None:
    """From now on Daphne's connections are such."""
    http.HTTPChannel = TellingChannel  # type: ignore[misc]
