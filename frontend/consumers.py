"""The WebSocket of a page."""

from channels.generic.websocket import AsyncWebsocketConsumer


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    pass
