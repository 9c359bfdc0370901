"""The web process: HTTP through Django, WebSockets through Channels."""

import os

from gpusched.lib.web import daphne  # before Twisted's reactor, which it chooses

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpusched.settings")

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module
from typing import IO, Any

# A thread with an answer from the database waits behind computing threads for the interpreter, by default five
# milliseconds each. With a handful of round trips in a request, that is most of its time.
sys.setswitchinterval(0.0005)

import django

from gpusched.env import SettingError

try:
    django.setup()
except SettingError as error:
    sys.exit(f"gpusched: {error}")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.signals import request_started
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import path, set_script_prefix

from frontend.websocket import LiveConsumer
from gpusched import tracing
from gpusched.lib.process.children import settle_heap
from gpusched.lib.web.backpressure import Send, backpressure
from gpusched.lib.web.connections import abort
from gpusched.lib.web.deferred import BrokenResponse, DeferredResponse
from gpusched.lib.web.request_threads import RequestThreads, answered
from gpusched.lib.web.websockets import bounded_output, closed_in_outages, of_own_pages
from nodes.agents.websocket import AgentConsumer
from nodes.agents.hub import hub
from serving.web import openai, serving
from nodes.streams.heads_websocket import head_socket
from nodes.streams.websocket import stream_socket


logger = logging.getLogger(__name__)
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class OneHopHandler(ASGIHandler):
    """Django's handler with all the work of a request in one hop to a thread, and with threads that stay alive.

    Django's own handler hops for each signal, each middleware and the view, and starts a thread for each request, with
    a database connection of its own: measured with eight connections, 130 submits a second instead of 416."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = RequestThreads(settings.ENV.web_threads)
        self._in_progress, self._has_begun = 0, False

    def is_busy(self) -> bool:
        """Return whether requests are in progress, without those that only wait, or have begun since the last call."""
        has_begun, self._has_begun = self._has_begun, False
        return has_begun or self._in_progress > self._threads.yielded

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def handle(
        self,
        scope: dict[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        self._in_progress, self._has_begun = self._in_progress + 1, True
        try:
            response = await answered(self._threads, partial(self._respond, scope, body))
            if not isinstance(response, DeferredResponse) and not response.streaming:
                await self.send_response(response, send)
                return
        finally:
            self._in_progress -= 1
        if isinstance(response, DeferredResponse):
            await unless_gone(self._send_deferred(response, scope, send), receive)
        else:
            await unless_gone(self._stream(response, scope, send), receive)

    async def _send_deferred(self, deferred: DeferredResponse, scope: dict[str, Any], send: Send) -> None:
        response = await deferred.resolve()
        if response.streaming:
            await self._stream(response, scope, send)
        else:
            await self.send_response(response, send)

    async def _stream(self, response: HttpResponseBase, scope: dict[str, Any], send: Send) -> None:
        try:
            with backpressure(scope, send) as slowly:
                await self.send_response(response, slowly)
        except BrokenResponse as error:
            logger.info("a response ends early: %s", error)
            abort(scope)
        finally:
            # Django's own way starts a thread for each. A client that has all may leave just now: that cancels the
            # wait, and without the shield also a call that has not begun.
            await asyncio.shield(answered(self._threads, response.close))

    def _respond(self, scope: dict[str, Any], body: IO[bytes]) -> HttpResponseBase:
        with body:
            set_script_prefix(get_script_prefix(scope))
            request_started.send(sender=self.__class__, scope=scope)
            request, refused = self.create_request(scope, body)
            response = refused if request is None else self.get_response(request)
            assert response is not None
            if not response.streaming:
                response.close()
            elif isinstance(response, FileResponse):
                response.block_size = self.chunk_size
            return response


async def unless_gone(sending: Awaitable[None], receive: Receive) -> None:
    """Send until the end, or until the client leaves: after the body, the only event still to receive."""
    task = asyncio.current_task()
    assert task is not None
    is_gone = False

    def stop(_: asyncio.Future[Any]) -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    leaving = asyncio.ensure_future(receive())
    leaving.add_done_callback(stop)
    try:
        await sending
    except asyncio.CancelledError:
        if not is_gone or task.uncancel():  # cancelled by others, too
            raise
    finally:
        leaving.remove_done_callback(stop)
        leaving.cancel()


def start() -> None:
    """Start what runs in this process beside its requests. It waits for none: its first may be long in coming, while
    the agents connected here have replicas, and requests wait for those."""
    hub.start()
    serving.start()
    openai.start()


tracing.start("gpusched-web")
handler = OneHopHandler()
daphne.install(start, handler.is_busy)

application = ProtocolTypeRouter(
    {
        "http": handler,
        "websocket": bounded_output(
            closed_in_outages(
                URLRouter(
                    [
                        path("ws/agent/", AgentConsumer.as_asgi()),
                        path("ws/jobs/<int:job_id>/stream", stream_socket),
                        path("ws/heads/<int:node_id>", head_socket),
                        path("ws/live/", of_own_pages(AuthMiddlewareStack(LiveConsumer.as_asgi()))),
                    ]
                )
            )
        ),
    }
)

# Load the views, too: otherwise the first request loads them.
import_module(settings.ROOT_URLCONF)
settle_heap()
