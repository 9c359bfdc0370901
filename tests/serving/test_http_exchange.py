"""HTTP over a stream into a job: whole, chunked and broken responses."""

import asyncio

import pytest

from serving.openai.http_exchange import BadResponse, exchange


class Recorded:
    """A stream that returns these pieces and keeps what is written."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.written = list(pieces), b""

    async def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None: ...


async def whole(stream):
    response = await exchange(stream, "POST", "/v1/embeddings", [(b"content-type", b"application/json")], b"{}")
    return response.status, [piece async for piece in response.body]


def ask(*pieces):
    return asyncio.run(whole(Recorded(*pieces)))


def test_request_has_its_length_and_closes_the_connection():
    stream = Recorded(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    asyncio.run(whole(stream))
    head, _, body = stream.written.partition(b"\r\n\r\n")
    assert (b"POST /v1/embeddings HTTP/1.1" in head, b"content-length: 2" in head.lower(), body) == (True, True, b"{}")
    assert b"connection: close" in head.lower()


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
