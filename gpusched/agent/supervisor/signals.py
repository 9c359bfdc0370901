"""The queue of signals for one rank: the agent writes it, the supervisor sends each signal once. Standard library
only."""

import signal
from typing import Any

from gpusched.agent import processes
from gpusched.agent.containers import client
from gpusched.agent.rank_files import rank_dir

# The file has the latest ones; a supervisor that is further behind is not alive.
MAX_SIGNALS = 100


def enqueue(directory: rank_dir.Directory, sequence: int, name: str) -> None:
    """Append a signal (`USR1`); wake the supervisor afterwards. OSError on a full disk: the server repeats the
    signal."""
    waiting = [*_written(directory), [sequence, name]][-MAX_SIGNALS:]
    rank_dir.write(directory, rank_dir.SIGNALS, {"signals": waiting})


def last_sequence(directory: rank_dir.Directory) -> int:
    """Return the sequence number of the latest signal; 0 if there is none."""
    return max((sequence for sequence, _ in _written(directory)), default=0)


def send(directory: rank_dir.Directory, spec: dict[str, Any], pid: int, after: int) -> int:
    """Send the signals after this sequence number to the first process; return the latest number.

    Not to all processes, as at an end: an unexpected signal ends a program, and its helpers expect none."""
    for sequence, name in _written(directory):
        if sequence <= after:
            continue
        after = sequence
        number = getattr(signal, f"SIG{name}", None)
        if isinstance(number, signal.Signals) and not client.send(spec, number) and "container" not in spec:
            processes.signal_all([pid], number)
    return after


def _written(directory: rank_dir.Directory) -> list[tuple[int, str]]:
    """Return the signals in ascending order; ignore invalid entries from a job of the agent's own user."""
    entries = (rank_dir.read(directory, rank_dir.SIGNALS) or {}).get("signals")
    pairs = [tuple(pair) for pair in entries if isinstance(pair, list)] if isinstance(entries, list) else []
    return sorted(pair for pair in pairs if tuple(map(type, pair)) == (int, str))
