"""HTTP over a stream into a job: whole, chunked and broken responses."""

import asyncio

import pytest

from serving.openai.http_exchange import BadResponse, HttpConnection


class Recorded:
    """A stream that returns these pieces and keeps what is written."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.written = list(pieces), b""

    async def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None: ...

    @property
    def is_quiet(self) -> bool:
        return True


async def whole(connection):
    response = await connection.exchange("POST", "/v1/embeddings", [(b"content-type", b"application/json")], b"{}")
    return response.status, [piece async for piece in response.body]


def ask(*pieces):
    return asyncio.run(whole(HttpConnection(Recorded(*pieces))))


def test_request_has_its_length_and_its_body():
    stream = Recorded(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    asyncio.run(whole(HttpConnection(stream)))
    head, _, body = stream.written.partition(b"\r\n\r\n")
    assert (b"POST /v1/embeddings HTTP/1.1" in head, b"content-length: 2" in head.lower(), body) == (True, True, b"{}")


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na"


def test_connection_carries_one_request_after_the_other():
    stream = Recorded(OK, OK)
    connection = HttpConnection(stream)
    assert asyncio.run(whole(connection)) == (200, [b"a"])
    assert connection.renew()
    assert asyncio.run(whole(connection)) == (200, [b"a"])
    assert stream.written.count(b"POST") == 2


@pytest.mark.parametrize("end", [OK + b"HTTP/1.1 408", OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")])
def test_connection_ends_when_the_program_closes_it_or_sends_more(end):
    connection = HttpConnection(Recorded(end))
    assert asyncio.run(whole(connection)) == (200, [b"a"])
    assert not connection.renew()


def test_connection_is_not_used_again_in_the_middle_of_a_response():
    async def scenario():
        connection = HttpConnection(Recorded(OK[:-1], b"a"))
        await connection.exchange("POST", "/", [], b"")
        return connection.renew()

    assert asyncio.run(scenario()) is False


def test_response_is_returned_in_pieces_as_they_arrive():
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert ask(head, b"1\r\na\r\n", b"2\r\nbc\r\n0\r\n\r\n") == (200, [b"a", b"bc"])


def test_body_without_a_length_ends_with_the_connection():
    status, pieces = ask(b"HTTP/1.0 503 Busy\r\n\r\nlat", b"er")
    assert (status, b"".join(pieces)) == (503, b"later")


@pytest.mark.parametrize(
    "pieces",
    [(), (b"SSH-2.0\r\n\r\n",), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"abc"), (b"HTTP/1.1 200 OK\r\n",)],
)
def test_other_answers_are_bad_responses(pieces):
    with pytest.raises(BadResponse):
        ask(*pieces)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((), "the program closed the connection before its response"),
        ((b"HTTP/1.1 200 OK\r\n",), "the program closed the connection before its response"),
        ((b"HTTP/1.1 600 X\r\ncontent-length: 0\r\n\r\n",), "the status 600, which does not exist"),
    ],
)
def test_bad_response_says_what_the_program_did(pieces, text):
    with pytest.raises(BadResponse, match=text):
        ask(*pieces)
