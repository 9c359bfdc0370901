"""How tests let time pass. Only this module sleeps; ruff refuses `time.sleep` in any other test."""

import random
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(
    condition: Callable[[], object], seconds: float = 20, description: str = "the condition", pause: float = 0.05
) -> None:
    """Poll until the condition holds: often at first, then every `pause` seconds. Raises TimeoutError with the
    description of the condition."""
    deadline, interval = time.monotonic() + seconds, 0.005
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {description}")
        time.sleep(interval)
        interval = min(1.5 * interval, pause)


def assert_stays(condition: Callable[[], object], seconds: float) -> None:
    """Assert that the condition holds for this long: that something does not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(min(0.05, seconds / 5))


def until_random_moment(chance: random.Random, lowest: float, highest: float) -> None:
    """Let a random time pass, so that what follows happens at any moment."""
    time.sleep(chance.uniform(lowest, highest))


def until_exists(file: Path) -> str:
    """A shell command that ends once the file exists, or its directory does not: a job that runs for as long as the
    test needs it to, and outlives nothing."""
    return f"while [ -d {file.parent} ] && [ ! -e {file} ]; do sleep 0.1; done"
