"""The what-if process: it answers questions, so that the web process stays free for requests.

`client.py` starts it as `python -m scheduling.whatif.process`. It has neither database nor settings, only pipes: stdin
has (number, view or None, question, arguments), stdout (whether it is answered, the answer or the error)."""

import gc
import io
import os
import pickle  # nosec B403
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from scheduling.engine import model
from scheduling.engine.whatif.questions import Present

# The number of views that it keeps: concurrent questions share a view.
MAX_VIEWS = 3
# Requests, the scheduler and the database have priority.
_NICENESS = 5
_Request = tuple[int, tuple[Any, ...] | None, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def dumps(value: object) -> bytes:
    """Pickle a value, three times as fast as the default pickler."""
    buffer = io.BytesIO()
    _Packer(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def load(file: IO[bytes]) -> Any:
    """Load the next value from the other side. Raise EOFError if it has gone."""
    try:
        # Only between this process and its parent, through private pipes.
        return pickle.load(file)  # noqa: S301  # nosec B301
    except pickle.UnpicklingError as error:
        raise EOFError from error


def main() -> None:
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the parent ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that printed text does not corrupt them
    questions: SimpleQueue[_Request] = SimpleQueue()
    Thread(target=_listen, args=(questions,), daemon=True).start()
    # Plans create millions of objects with hardly any cycles: collecting those took half the time.
    gc.set_threshold(100_000)
    presents: dict[int, Present] = {}
    while True:
        answers.write(dumps(_answer(presents, *questions.get())))
        answers.flush()


def _listen(questions: "SimpleQueue[_Request]") -> None:
    """Receive questions. Exit when the parent has gone, which makes the present answer useless."""
    stdin = sys.stdin.buffer
    try:
        while True:
            questions.put(load(stdin))
    finally:
        os._exit(0)


def _answer(
    presents: dict[int, Present],
    number: int,
    present: tuple[Any, ...] | None,
    question: Callable[..., Any],
    args: tuple[Any, ...],
    more: dict[str, Any],
) -> tuple[bool, Any]:
    try:
        if present is not None:
            presents.pop(number - MAX_VIEWS, None)
            presents[number] = Present(*present)
        return True, question(presents[number], *args, **more)
    except Exception:  # noqa: BLE001 the parent passes it to the caller
        return False, traceback.format_exc()


def _by_fields(kind: type) -> Callable[[object], tuple[type, tuple[object, ...]]]:
    read_fields = attrgetter(*[field.name for field in fields(kind)])
    return lambda value: (kind, read_fields(value))


class _Packer(pickle.Pickler):
    dispatch_table = {
        kind: _by_fields(kind)
        for kind in (model.Job, model.Request, model.Device, model.Node, model.RankPlacement, model.RunningJob)
    }


if __name__ == "__main__":
    main()
