"""An agent in which functions raise at random: `python -m tests.system.faulty_agent run …` (chaos.py).

FAULTS_EVERY_SECONDS is the mean time between two faults, FAULTS_FILE gets a line for each. A fault is raised in place
of a call: of a thread that cannot start, of the driver, of a message. One in four lasts for the next calls, too."""

import asyncio
import functools
import inspect
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpusched.agent import main as agent
from gpusched.agent.host.machine import PretendMachine
from gpusched.agent.node import Node

REPEATS = 8
# A function that is not called for this long is replaced by another one.
TIMEOUT_SECONDS = 2.0


class Injected(RuntimeError):
    """An exception that no code of the agent expects."""


class Faults:
    """Decides which call raises. Used from all threads of the agent."""

    def __init__(self, every_seconds: float, file: Path) -> None:
        self._every_seconds, self._file = every_seconds, file
        self._rng = random.Random()
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._target, self._repeats = "", 0
        self._next_at = time.monotonic() + self._pause()

    def maybe_raise(self, name: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now >= self._next_at and (not self._target or now >= self._next_at + TIMEOUT_SECONDS):
                # All functions are equally likely, however often they are called.
                self._target, self._repeats = self._rng.choice(self._names), self._rng.choice((1, 1, 1, REPEATS))
                self._next_at = now
            if name != self._target:
                return
            self._repeats -= 1
            if not self._repeats:
                self._target, self._next_at = "", now + self._pause()
            with self._file.open("a") as file:
                file.write(f"{os.getpid()} {name}\n")
        raise Injected(f"injected into {name}")

    def _pause(self) -> float:
        return self._rng.expovariate(1 / self._every_seconds)

    def into(self, owner: Any, name: str) -> None:
        """Make `owner.name` raise now and then before it runs."""
        real = getattr(owner, name)
        self._names.append(f"{owner.__name__}.{name}")
        setattr(owner, name, self._faulty(real, self._names[-1]))

    def _faulty(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(real):

            @functools.wraps(real)
            async def faulty_coroutine(*args: Any, **kwargs: Any) -> Any:
                self.maybe_raise(name)
                return await real(*args, **kwargs)

            return faulty_coroutine

        @functools.wraps(real)
        def faulty(*args: Any, **kwargs: Any) -> Any:
            self.maybe_raise(name)
            return real(*args, **kwargs)

        return faulty


def inject(faults: Faults) -> None:
    """Inject faults into threads, the driver's readings and facts, and each function of a node but its constructor."""
    faults.into(asyncio, "to_thread")
    for owner in (Node, PretendMachine):
        for name, member in vars(owner).copy().items():
            if inspect.isfunction(member) and not name.startswith("__"):
                faults.into(owner, name)


def main() -> None:
    # Jobs and their supervisors must not inherit these.
    every_seconds, file = os.environ.pop("FAULTS_EVERY_SECONDS"), os.environ.pop("FAULTS_FILE")
    inject(Faults(float(every_seconds), Path(file)))
    agent.main()


if __name__ == "__main__":
    main()
