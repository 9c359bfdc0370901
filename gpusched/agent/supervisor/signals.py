"""The signals that are to be sent to one rank: written down by the agent, sent once each by its supervisor. Standard
library only."""

import signal
from pathlib import Path
from typing import Any

from gpusched.agent import processes
from gpusched.agent.containers import client
from gpusched.agent.rank_files import rank_dir

# The file has the latest; a supervisor that is further behind than that is not alive.
MAX_KEPT = 100


def enqueue(directory: Path, sequence: int, name: str) -> None:
    """Writes down one more signal (`USR1`). The supervisor is to be woken then. OSError of a full disk: it is told
    again."""
    waiting = [*_written(directory), [sequence, name]][-MAX_KEPT:]
    rank_dir.write(directory, rank_dir.SIGNALS, {"signals": waiting})


def last_sequence(directory: Path) -> int:
    """The sequence number of the latest that stands here; 0: none."""
    return max((sequence for sequence, _ in _written(directory)), default=0)


def send(directory: Path, spec: dict[str, Any], pid: int, after: int) -> int:
    """Sends those that came after this sequence number to the first process; gives the number of the latest.

    Not to all of them, as an end is: a signal that a program does not expect ends it, and its helpers expect none."""
    for sequence, name in _written(directory):
        if sequence <= after:
            continue
        after = sequence
        number = getattr(signal, f"SIG{name}", None)
        if isinstance(number, signal.Signals) and not client.send(spec, number) and "container" not in spec:
            processes.signal_all([pid], number)
    return after


def _written(directory: Path) -> list[tuple[int, str]]:
    """Ascending; what a job of the agent's own user has put there instead is no signal."""
    told = (rank_dir.read(directory, rank_dir.SIGNALS) or {}).get("signals")
    pairs = [tuple(pair) for pair in told if isinstance(pair, list)] if isinstance(told, list) else []
    return sorted(pair for pair in pairs if tuple(map(type, pair)) == (int, str))
