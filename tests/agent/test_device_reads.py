"""Order of GPU reads: one at a time, and before the end of a failed rank is reported, so that an Xid is neither lost
nor late."""

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from gpusched.agent import node as node_module
from gpusched.agent.gpus.nvml import Nvml
from gpusched.agent.host import doctor
from gpusched.agent.host.machine import PretendMachine, PretendSpec, RealMachine
from gpusched.agent.identity import Identity
from gpusched.agent.node import Node
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import DeviceFacts, Ended, NodeFacts, RankSpec, Reading, Run, Xid
from tests.agent.test_dropped_ranks import Recording

GPU = "GPU-1"


class Failed(PretendMachine):
    """A machine whose GPU has an Xid; the next reading of all devices returns it."""

    def __init__(self) -> None:
        super().__init__("node", PretendSpec(1, "A100", 81920, 1, 8, 65536))
        self.inside, self.overlapped = 0, False

    def readings(self, busy: Callable[[], set[str]]) -> list[Reading]:
        return [Reading(uuid=GPU, xids=[Xid(code=79, seconds_ago=0)])]

    def read_use(self, devices: Collection[str], busy: Callable[[], set[str]]) -> list[Reading]:
        return [Reading(uuid=GPU, memory_used_mb=0, process_ids=[])]


def node_of(tmp_path: Path, machine: PretendMachine, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("GPUSCHED_AGENT_ALLOW_ROOT", "true")
    identity = Identity(name="node", node_key="key", url="http://127.0.0.1:1", credential="n1.secret")
    return Node(tmp_path, identity, machine, Recording(tmp_path), "", 1 << 20)


def end(node: Node, tmp_path: Path, exit_code: int) -> None:
    """A rank with a GPU that ran and ended, noticed by whichever part of the agent."""
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="x", argv=["true"], device_uuids=[GPU])
    node.ranks.apply([Run(key="1.1.0", spec=spec)])
    directory = tmp_path / "ranks" / "1.1.0"
    (directory / rank_dir.LOCK).write_text(rank_dir.boot_id())
    rank_dir.write(directory, rank_dir.EXIT, {"at": rank_dir.now(), "reason": "exited", "exit_code": exit_code})
    assert node.ranks.inspect("1.1.0")


def test_failure_is_reported_only_with_a_later_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat may come between the end and the agent's own reading of the GPUs: it still carries the Xid."""

    async def speak() -> None:
        node = node_of(tmp_path, Failed(), monkeypatch)
        node._facts_tried.set()
        end(node, tmp_path, exit_code=1)
        message = await node.message()
        assert [report.key for report in message.reports if isinstance(report, Ended)] == ["1.1.0"]
        assert [[xid.code for xid in reading.xids] for reading in message.readings] == [[79]]

    asyncio.run(speak())


def test_end_is_reported_with_silent_devices_when_the_driver_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Failed):
        def readings(self, busy: Callable[[], set[str]]) -> list[Reading]:
            raise RuntimeError("the driver's library is broken")

    async def speak() -> None:
        node = node_of(tmp_path, Broken(), monkeypatch)
        node._facts_tried.set()
        end(node, tmp_path, exit_code=1)
        [report] = (await node.message()).reports
        assert isinstance(report, Ended) and list(report.left) == [GPU]

    asyncio.run(speak())


def test_devices_are_not_free_while_the_driver_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No new job must get them, and jobs that run there are left alone. The log names its beginning and its end once."""
    release = threading.Event()

    class Hanging(Failed):
        def facts(self) -> NodeFacts:
            return replace(super().facts(), devices=[DeviceFacts(uuid=GPU, index=0, model="A100")])

        def readings(self, busy: Callable[[], set[str]]) -> list[Reading]:
            release.wait(20)
            return [Reading(uuid=GPU, process_ids=[])]

    async def speak() -> None:
        monkeypatch.setattr(node_module, "HUNG_SECONDS", 0.05)
        node = node_of(tmp_path, Hanging(), monkeypatch)
        parts = [asyncio.create_task(part) for part in (node.keep_facts(), node.keep_reading(0.01))]
        occupancies = []
        while "clear" not in occupancies:
            occupancies += [reading.occupancy for reading in (await node.message()).readings if reading.uuid == GPU]
            if occupancies[-2:] == ["dirty", "dirty"]:  # again and again: a message may be lost
                release.set()
            await asyncio.sleep(0)
        assert set(occupancies) == {"dirty", "clear"}
        for part in parts:
            part.cancel()

    asyncio.run(asyncio.wait_for(speak(), 20))
    logged = [record.getMessage() for record in caplog.records if "driver" in record.getMessage()]
    assert ["answers again" in sentence for sentence in logged] == [False, True]


@pytest.mark.parametrize("ask", ["read", "read_use", "devices", "driver_version"])
def test_driver_is_called_by_one_thread_at_a_time(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver hands out an event once: one of two concurrent readers could drop the other's Xid."""
    inside, peak, entered = 0, 0, threading.Condition()

    def answer() -> int:
        nonlocal inside, peak
        with entered:
            inside += 1
            peak = max(peak, inside)
            entered.notify_all()
            entered.wait_for(lambda: inside > 1, 0.3)
            inside -= 1
        return 0

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", answer)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: str(answer()))
    nvml = Nvml()
    question = {"read_use": lambda: nvml.read_use([])}.get(ask, getattr(nvml, ask))
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(nvml.read), pool.submit(question)]:
            future.result()
    assert peak == 1


def test_facts_come_without_hints_when_hints_raise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A41. Logged once, however often facts are read."""

    def broken(*_: object) -> None:
        raise RuntimeError("no hints today")

    monkeypatch.setattr(doctor, "hints", broken)
    machine = RealMachine()
    assert [machine.facts().hints for _ in range(3)] == [[], [], []]
    assert len([record for record in caplog.records if "without hints" in record.getMessage()]) == 1
