"""An agent starts no rank on a GPU that another rank still has, whatever the server orders."""

from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually


def test_rank_waits_for_a_live_rank_whose_gpu_it_gets_whole(agent: Agent, control: Control) -> None:
    """The server took the first one for ended: its order was late, and the node was lost meanwhile."""
    agent.start()
    first = control.run("sleep", "60", device_uuids=["GPU-1", "GPU-2"])
    control.start_of(first)
    second = control.run("true", job=2, device_uuids=["GPU-2"])
    other = control.run("true", job=3, device_uuids=["GPU-3"])
    control.end_of(other)
    messages = len(control.syncs)
    eventually(lambda: len(control.syncs) > messages + 3, 20, "some more answers with the order")
    assert second not in control.started
    control.stop(first)
    control.end_of(first)
    assert control.end_of(second).exit_code == 0


def test_ranks_that_share_a_gpu_run_together(agent: Agent, control: Control) -> None:
    agent.start()
    keys = [control.run("sleep", "60", job=job, device_uuids=["GPU-1"], gpu_memory_mb=1000) for job in (1, 2)]
    for key in keys:
        control.start_of(key)
