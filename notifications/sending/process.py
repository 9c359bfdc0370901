"""The sending process: it sends one message at a time, and reports how that went.

`child.py` starts it as `python -m notifications.sending.process`. It has neither database nor settings, and a guard
around the network and files of this machine. stdin has a line of JSON per message, stdout one per result."""

import logging
import os
import re
import resource
import signal
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread

import certifi
import httpx
import msgspec

from notifications import services
from notifications.addresses import parse_networks
from notifications.sending.guard import Guard
from notifications.sending.message import Message, Result
from notifications.sending.recipients import watched

MAX_ERROR = 300
_MAX_ANSWER_BYTES, _MAX_ANSWER_SECONDS = 16_384, 2.0
# Of virtual memory: an endless answer ends this process, which is started again.
_MAX_MEMORY_BYTES = 2 << 30
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 10.0
_MAX_WAIT_SECONDS = 86_400.0


_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
# Of Apprise's records about mail; and an answer in Python's notation.
_SAID = "Socket Exception: "
_ANSWER = re.compile(r"""\((\d+), b(['"])(.*?)\2\)""")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the parent ends this process
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that printed text does not corrupt them
    lines: SimpleQueue[bytes] = SimpleQueue()
    networks = parse_networks(sys.stdin.buffer.readline().decode())
    Thread(target=_listen, args=(lines,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    services.load_all()
    sending = _Sending(Guard(networks))
    while True:
        result = sending.send(msgspec.json.decode(lines.get(), type=Message))
        results.write(msgspec.json.encode(result) + b"\n")
        results.flush()


def _listen(lines: "SimpleQueue[bytes]") -> None:
    """Receive messages. Exit when the parent has gone: another one sends what is not confirmed."""
    try:
        while line := sys.stdin.buffer.readline():
            lines.put(line)
    finally:
        os._exit(0)


class _Sending:
    """A client for webhooks, whose connections last for several messages, and the guard."""

    def __init__(self, guard: Guard) -> None:
        context = ssl.create_default_context(cafile=certifi.where())
        context.load_default_certs()
        timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
        self._http = httpx.Client(verify=context, trust_env=False, follow_redirects=False, timeout=timeout)
        self._guard = guard
        guard.install()

    def send(self, message: Message) -> Result:
        """Send a message, and return how that went. Never raises."""
        self._guard.take_refusal()
        try:
            result = self._request(message) if message.is_webhook else _notify(message)
        except Exception as error:  # noqa: BLE001 whatever a library raises, the message was not sent
            result = Result(is_sent=False, error=_described(error))
        if not result.is_sent and (refusal := self._guard.take_refusal()):
            result.error = refusal
        return result

    def _request(self, message: Message) -> Result:
        with self._http.stream("POST", message.target, content=message.body, headers=message.headers) as answer:
            _drain(answer)
        status = answer.status_code
        if answer.is_success:
            return Result(is_sent=True, status=status)
        error = f"the receiver answered {status}"
        if answer.has_redirect_location:
            error += ", a redirect, which is not followed"
        wait = answer.headers.get("Retry-After", "")
        # JSON has no infinity, which hundreds of digits would become.
        seconds = min(float(wait), _MAX_WAIT_SECONDS) if wait.isascii() and wait.isdigit() else 0.0
        return Result(is_sent=False, status=status, error=error, is_gone=status == 410, retry_after=seconds)


def _drain(answer: httpx.Response) -> None:
    """Receive the body of an answer, so that the connection can be used again. The status has confirmed the message
    already: whether the body ends, and how, changes nothing."""
    received, ends_at = 0, time.monotonic() + _MAX_ANSWER_SECONDS
    with suppress(httpx.HTTPError):
        for part in answer.iter_raw():
            received += len(part)
            if received > _MAX_ANSWER_BYTES or time.monotonic() > ends_at:
                break


def _notify(message: Message) -> Result:
    service = services.open_service(message.target)
    with _warnings(is_mail=service.name == "E-mail") as warnings, watched() as recipients:
        is_sent = services.send_text(service, message.title, message.body)
    if is_sent:
        return Result(is_sent=True)
    text = _without_secrets("; ".join(warnings) or f"{service.name} did not accept it", message.target)
    if recipients.is_over:
        return Result(is_sent=True, error=f"not all recipients were accepted: {text}"[:MAX_ERROR])
    return Result(is_sent=False, error=text[:MAX_ERROR])


@contextmanager
def _warnings(*, is_mail: bool) -> Iterator[list[str]]:
    """Collect the warnings of Apprise, which returns no reason. For mail they lack what the server said, such as that
    it does not know the password; a record for debugging has it. Those of other services have addresses with
    secrets."""
    texts: list[str] = []

    def emit(record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING or (is_mail and text.startswith(_SAID)):
            texts.append(_in_plain_text(text.removeprefix(_SAID)))

    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("apprise")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


def _in_plain_text(text: str) -> str:
    """Return an error of smtplib as mail servers write it: `535 wrong password` for `(535, b'wrong password')`."""
    return _ERRNO.sub("", _ANSWER.sub(r"\1 \3", text)).strip("{}")


def _without_secrets(text: str, target: str) -> str:
    """Replace the words of an address, which may be secrets, in a library's text."""
    words = {word for word in _split(target.partition("://")[2]) if len(word) > 3}
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, "…")
    return text


def _split(text: str) -> list[str]:
    return "".join(character if character.isalnum() or character in "-_" else " " for character in text).split()


def _described(error: Exception) -> str:
    """Describe an error of a connection without its target."""
    if isinstance(error, httpx.TimeoutException):
        return "the receiver did not answer in time"
    if isinstance(error, httpx.ConnectError):
        return f"no connection: {_ERRNO.sub('', str(error))}"[:MAX_ERROR]
    if isinstance(error, services.NotATarget):
        return f"the target {error}"[:MAX_ERROR]
    return f"the send failed ({type(error).__name__})"


if __name__ == "__main__":
    main()
