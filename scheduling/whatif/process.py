"""The adviser: a process that answers what-if questions, so that the web process stays free to answer requests.

`client.py` starts it as `python -m scheduling.whatif.process`. It has neither database nor settings, only its input:
on stdin (number, present or None, question, arguments), on stdout (is it answered, the answer or what went wrong)."""

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

# So many of the latest presents are kept: questions that came together are about the same one.
KEPT = 3
# Requests, the scheduler and the database go first.
_NICE = 5
_Asked = tuple[int, tuple[Any, ...] | None, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def dumps(what: object) -> bytes:
    """As bytes for the other side, three times as quickly as pickle does by itself."""
    found = io.BytesIO()
    _Packer(found, protocol=5).dump(what)
    return found.getvalue()


def load(file: IO[bytes]) -> Any:
    """The next that the other side has sent. EOFError: it has gone."""
    try:
        # Only between this process and its parent, through pipes that nobody else has.
        return pickle.load(file)  # noqa: S301  # nosec B301
    except pickle.UnpicklingError as error:
        raise EOFError from error


def main() -> None:
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent says when it is over
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not spoil them
    asked: SimpleQueue[_Asked] = SimpleQueue()
    Thread(target=_listen, args=(asked,), daemon=True).start()
    # Plans make objects by the million, and hardly any in circles: looking for those took half of the time.
    gc.set_threshold(100_000)
    presents: dict[int, Present] = {}
    while True:
        answers.write(dumps(_answer(presents, *asked.get())))
        answers.flush()


def _listen(asked: "SimpleQueue[_Asked]") -> None:
    """When the parent is gone, however it went, nobody wants the answer that is being worked out."""
    stdin = sys.stdin.buffer
    try:
        while True:
            asked.put(load(stdin))
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
            presents.pop(number - KEPT, None)
            presents[number] = Present(*present)
        return True, question(presents[number], *args, **more)
    except Exception:  # noqa: BLE001 whatever it is, the parent tells who asked
        return False, traceback.format_exc()


def _by_fields(kind: type) -> Callable[[object], tuple[type, tuple[object, ...]]]:
    found = attrgetter(*[field.name for field in fields(kind)])
    return lambda one: (kind, found(one))


class _Packer(pickle.Pickler):
    dispatch_table = {
        kind: _by_fields(kind)
        for kind in (model.Job, model.Request, model.Device, model.Node, model.RankPlacement, model.RunningJob)
    }


if __name__ == "__main__":
    main()
