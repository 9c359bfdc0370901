"""Questions that the adviser of the tests is asked: as functions of the present like the real ones."""

import os
import time
from pathlib import Path

from scheduling.engine.whatif.questions import Present


def number(here: Present) -> int:
    """The adviser's process."""
    return os.getpid()


def identity(here: Present) -> int:
    return id(here)


def told(here: Present, path: str, word: str) -> str:
    with Path(path).open("a") as file:
        file.write(word)
    return word


def waits(here: Present, path: str) -> str:
    """Until there is such a file."""
    while not Path(path).exists():
        time.sleep(0.01)
    return "waited"


def never(here: Present, path: str) -> None:
    """Says in a file who thinks, for ever."""
    Path(path + ".new").write_text(str(os.getpid()))
    Path(path + ".new").rename(path)
    while True:
        pass


def dies(here: Present, path: str, times: int) -> str:
    """So many times, then it answers."""
    with Path(path).open("a") as file:
        file.write("x")
    if len(Path(path).read_text()) <= times:
        os._exit(1)
    return "lived"


def fails(here: Present) -> None:
    print("what it prints is no answer", flush=True)
    raise KeyError("of the engine")
