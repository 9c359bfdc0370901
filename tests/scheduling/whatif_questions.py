"""Questions for the what-if process in tests: functions of the present, like the real ones."""

import os
from pathlib import Path

from scheduling.engine.whatif.questions import Present
from tests.waiting import wait_for


def number(view: Present) -> int:
    """The adviser's process."""
    return os.getpid()


def identity(view: Present) -> int:
    return id(view)


def record_and_answer(view: Present, path: str, word: str) -> str:
    with Path(path).open("a") as file:
        file.write(word)
    return word


def wait_for_gate(view: Present, path: str) -> str:
    """Until there is such a file."""
    wait_for(Path(path).exists, 60)
    return "waited"


def think_forever(view: Present, path: str) -> None:
    """Write the process id to a file, and never return."""
    Path(path + ".new").write_text(str(os.getpid()))
    Path(path + ".new").rename(path)
    while True:
        pass


def dies(view: Present, path: str, times: int) -> str:
    """Fail this many times, then answer."""
    with Path(path).open("a") as file:
        file.write("x")
    if len(Path(path).read_text()) <= times:
        os._exit(1)
    return "lived"


def fails(view: Present) -> None:
    print("what it prints is no answer", flush=True)
    raise KeyError("of the engine")
