"""Run functions at the same time, each with a connection of its own."""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connections


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run each work at once in a thread with its own connection. Return their results or exceptions."""
    results: list[Any] = [None] * len(works)
    gate = threading.Barrier(len(works))

    def run(i: int, work: Callable[[], Any]) -> None:
        gate.wait()
        try:
            results[i] = work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[i] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(i, work)) for i, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results
