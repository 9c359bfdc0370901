"""Looking at processes that a test started, from outside."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether it runs: it is there, and more than a corpse that nobody has buried. It may go while we look."""
    try:
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
