"""The table of a node's ranks: threads add and drop ranks while the event loop reads it (A41)."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks import rank_state
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.protocol.agent_messages import Stop

READERS: dict[str, Callable[[Ranks], object]] = {
    "reports": Ranks.reports,
    "unacknowledged": Ranks.unacknowledged,
    "running": Ranks.running,
    "saved": Ranks.saved,
    "limits": Ranks.limits,
    "signalled": Ranks.signalled,
    "has_live": Ranks.has_live,
    "has_unreported_end": Ranks.has_unreported_end,
    "busy_devices": Ranks.busy_devices,
    "live": Ranks.live,
    "inspect_all": Ranks.inspect_all,
    "drop_settled": Ranks.drop_settled,
    "remind": Ranks.remind,
    "stop_all": lambda ranks: ranks.stop_all("cancelled", 0),
}


@pytest.mark.parametrize("reader", READERS)
def test_reader_survives_a_rank_that_a_thread_adds_meanwhile(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each access to a rank lets a thread add another one, as an order of the server does."""
    added = 0

    class Meddled(rank_state.RankState):
        def __getattribute__(self, name: str) -> Any:
            nonlocal added
            if is_meddling and added < 20 and threading.current_thread() is threading.main_thread():
                added += 1
                thread = threading.Thread(target=ranks.apply, args=([_stop(100 + added)],))
                thread.start()
                thread.join()
            return super().__getattribute__(name)

    is_meddling = False
    monkeypatch.setattr(rank_state, "RankState", Meddled)
    ranks = Ranks(Journal(tmp_path, rank_dir.boot_id()), Launcher(tmp_path / "doorbell", False), "node", None)
    ranks.apply([_stop(job) for job in range(1, 4)])
    is_meddling = True
    READERS[reader](ranks)
    is_meddling = False
    assert added and len(ranks.unacknowledged()) >= 3 + added


def _stop(job: int) -> Stop:
    """An order that adds a rank: one that never started here ends at once."""
    return Stop(key=f"{job}.1.0", reason="cancelled")


def test_acknowledgement_of_a_rank_that_a_thread_dropped_is_ignored(tmp_path: Path) -> None:
    ranks = Ranks(Journal(tmp_path, rank_dir.boot_id()), Launcher(tmp_path / "doorbell", False), "node", None)
    ranks.apply([_stop(1)])
    ranks.table.drop("1.1.0")
    ranks.acknowledge(["1.1.0"], ["1.1.0"])
    assert ranks.unacknowledged() == []
