"""The messages to a sending process, and its results. They have their own module, so that other processes do not import
the libraries of process.py."""

import msgspec


class Message(msgspec.Struct, kw_only=True):
    """A message. Webhooks have `headers` and a body of JSON, other targets a title and a text."""

    target: str
    body: str
    is_webhook: bool = False
    title: str = ""
    headers: dict[str, str] = {}


class Result(msgspec.Struct, kw_only=True):
    """How a send went. `error` names no secret of the target; of a sent message, it tells who did not get it.
    `is_gone`: the receiver wants no more messages. `retry_after`: seconds, as the receiver asked."""

    is_sent: bool
    status: int | None = None
    error: str = ""
    is_gone: bool = False
    retry_after: float = 0.0
