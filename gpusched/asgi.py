"""The web process: HTTP through Django, WebSockets through Channels."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpusched.settings")
# Each request runs in a thread of its own: without a pool it would open a connection of its own, too.
os.environ.setdefault("GPUSCHED_DATABASE_POOL_SIZE", "16")

import sys

# A thread that has its answer from the database waits for the interpreter behind those that compute, five milliseconds
# each by default. With a handful of round trips in a request, that is most of its time.
sys.setswitchinterval(0.0005)

import django
from asgiref.sync import sync_to_async

django.setup()

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path

from frontend.consumers import LiveConsumer
from nodes.consumers import AgentConsumer
from nodes.hub import hub


class OneHopHandler(ASGIHandler):
    """Django's handler with the whole middleware chain and the view in one thread hop. Adapted one by one, each
    middleware hops to a thread and back on each request; measured, that costs more than all the rest of a submit."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        hub.start()
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)


application = ProtocolTypeRouter(
    {
        "http": OneHopHandler(),
        "websocket": URLRouter(
            [
                path("ws/agent/", AgentConsumer.as_asgi()),
                path("ws/live/", AllowedHostsOriginValidator(AuthMiddlewareStack(LiveConsumer.as_asgi()))),
            ]
        ),
    }
)
