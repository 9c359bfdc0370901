"""Answers that take a while end when their client leaves."""

import asyncio
import threading

import pytest
from django.http import StreamingHttpResponse

from gpusched.asgi import OneHopHandler, unless_gone


class Sending:
    """An answer that waits until `proceed` is set. `ended` is set by its own cleanup, which takes a turn of the loop."""

    def __init__(self):
        self.begun, self.proceed, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send(self):
        self.begun.set()
        try:
            await self.proceed.wait()
        finally:
            await asyncio.sleep(0)
            self.ended.set()


async def never():
    await asyncio.Event().wait()


def test_answer_ends_when_its_client_leaves():
    async def run():
        sending = Sending()

        async def left():
            await sending.begun.wait()
            return {"type": "http.disconnect"}

        await unless_gone(sending.send(), left)
        assert sending.ended.is_set()
        assert not sending.proceed.is_set()
        await asyncio.sleep(0)  # the task itself is not cancelled

    asyncio.run(run())


def test_answer_is_complete_if_its_client_stays():
    async def run():
        sending = Sending()
        sending.proceed.set()
        await unless_gone(sending.send(), never)
        assert sending.ended.is_set()

    asyncio.run(run())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(unless_gone(_fail(), never))


async def _fail():
    raise ZeroDivisionError


def test_answer_is_cancelled_with_its_request():
    async def run():
        sending = Sending()
        request = asyncio.ensure_future(unless_gone(sending.send(), never))
        await sending.begun.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert sending.ended.is_set()

    asyncio.run(run())


def test_answer_is_cancelled_with_its_request_when_its_client_leaves_meanwhile():
    async def run():
        begun, leaving = asyncio.Event(), asyncio.Event()

        async def send():
            try:
                begun.set()
                await never()
            finally:
                leaving.set()
                await never()  # until the client has left

        async def left():
            await leaving.wait()
            return {"type": "http.disconnect"}

        request = asyncio.ensure_future(unless_gone(send(), left))
        await begun.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(run())


def test_answer_is_closed_if_its_client_leaves_with_all_of_it_while_no_thread_is_free():
    """Else a download keeps its slot until the garbage collector finds it, and the next ones are refused."""
    closed, proceed, has_all = threading.Event(), threading.Event(), asyncio.Event()
    handler = OneHopHandler()
    for _ in range(handler._threads.maximum):
        handler._threads.submit(proceed.wait)

    async def content():
        yield b"all"

    async def send(message):
        if message["type"] == "http.response.body" and not message.get("more_body"):
            has_all.set()

    async def left():
        await has_all.wait()
        return {"type": "http.disconnect"}

    async def run():
        response = StreamingHttpResponse(content())
        response.close = closed.set  # type: ignore[method-assign]
        await unless_gone(handler._stream(response, {}, send), left)
        proceed.set()
        await asyncio.to_thread(closed.wait, 10)

    asyncio.run(run())
    assert closed.is_set()
