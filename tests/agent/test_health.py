"""Occupants of devices (A34, A35): real processes, the real agent, and the fake driver that lists them."""

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusched.agent import processes
from gpusched.agent.gpus.occupancy import Live, OccupancyChecker
from gpusched.agent.gpus.orphans import OrphanKiller
from gpusched.protocol.agent_messages import Ended, Reading
from tests.agent.conftest import A100, Agent, set_devices
from tests.agent.control import Control, eventually
from tests.processes import is_alive

ME = pwd.getpwuid(os.getuid()).pw_name
NO_RANKS = Live(frozenset(), frozenset(), frozenset(), frozenset(), frozenset(), frozenset)
ALLOCATED = Live(frozenset({"a"}), frozenset({"scope-1"}), frozenset({1}), frozenset(), frozenset(), frozenset)

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that starts a process unknown to any job, and returns its pid."""
    started = []

    def start_process(**environment: str) -> int:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUSCHED_")}
        process = subprocess.Popen(["sleep", "60"], env={**clean, **environment}, start_new_session=True)
        started.append(process)
        # The process exists a moment before its environment is readable.
        eventually(Path(f"/proc/{process.pid}/environ").read_bytes, 10, "its environment")
        return process.pid

    yield start_process
    for process in started:
        process.kill()
        process.wait()


def a_reading(memory: int | None = 4, *pids: int, unknown: bool = False) -> Reading:
    return Reading(uuid="a", memory_used_mb=memory, process_ids=None if unknown else list(pids))


def judged(occupants: OccupancyChecker, reading: Reading, live: Live = NO_RANKS) -> tuple[str | None, str]:
    [judged_reading] = occupants.judge([reading], live)
    return judged_reading.occupancy, judged_reading.occupant


# --- the judgement ----------------------------------------------------------------------------------------------------


def test_device_is_foreign_only_after_two_readings(start: Start) -> None:
    """A35: the driver lists a process for a moment after its end. One reading suffices to clear it."""
    occupants, pid = OccupancyChecker(), start()
    assert judged(occupants, a_reading(4, pid)) == (None, "")
    assert judged(occupants, a_reading()) == ("clear", "")
    assert judged(occupants, a_reading(4, pid)) == (None, "")
    assert judged(occupants, a_reading(4, pid)) == ("foreign", f"pid {pid} of {ME} (sleep)")
    assert judged(occupants, a_reading()) == ("clear", "")


def test_process_of_a_job_without_a_live_rank_makes_the_device_dirty(start: Start) -> None:
    """A34"""
    occupants, pid = OccupancyChecker(), start(GPUSCHED_JOB_ID="7", GPUSCHED_SCOPE="scope-0")
    judged(occupants, a_reading(4, pid))
    assert judged(occupants, a_reading(4, pid), ALLOCATED) == ("dirty", f"pid {pid} of {ME} (sleep)")


def test_process_in_the_session_of_an_ended_rank_makes_the_device_dirty(start: Start) -> None:
    """A34: also one that hides its environment."""
    occupants, pid = OccupancyChecker(), start()
    ended = Live(frozenset(), frozenset(), frozenset(), frozenset({pid}), frozenset(), frozenset)
    judged(occupants, a_reading(4, pid), ended)
    assert judged(occupants, a_reading(4, pid), ended)[0] == "dirty"


def test_process_of_a_live_rank_makes_the_device_dirty_after_its_end(start: Start) -> None:
    """A34: whatever became of the journal meanwhile."""
    occupants, pid = OccupancyChecker(), start()
    for _ in range(3):
        live = Live(frozenset({"a"}), frozenset({"s"}), frozenset({pid}), frozenset(), frozenset(), frozenset)
        assert judged(occupants, a_reading(4, pid), live) == ("clear", "")
    judged(occupants, a_reading(4, pid))
    assert judged(occupants, a_reading(4, pid))[0] == "dirty"


def test_only_proven_orphans_are_killed(start: Start) -> None:
    """A34: by the mark of a rank that there was, or because it was on the device as the rank's. A35: nothing else."""
    occupants = OccupancyChecker()
    marked, unknown, plain = start(GPUSCHED_SCOPE="scope-1"), start(GPUSCHED_SCOPE="x", GPUSCHED_JOB_ID="7"), start()
    every = a_reading(4, marked, unknown, plain)
    judged(occupants, every, ALLOCATED)
    assert occupants.orphans == set()
    ended = Live(frozenset(), frozenset(), frozenset(), frozenset({plain}), frozenset({"scope-2"}), frozenset)
    judged(occupants, every, ended)
    assert {pid for pid, _ in occupants.orphans} == {marked}
    marked_by_scope = start(GPUSCHED_SCOPE="scope-2")
    judged(occupants, a_reading(4, marked_by_scope), ended)
    assert {pid for pid, _ in occupants.orphans} == {marked_by_scope}
    judged(occupants, a_reading())
    assert occupants.orphans == set()


def test_orphan_is_killed_four_times_in_half_a_minute_at_most(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A34: and each time only if it is still the same process."""
    pid, other, now = start(), start(), [0.0]
    tries: list[float] = []
    state, another = processes.inspect(pid), processes.inspect(other)
    assert state is not None and another is not None
    leftovers = OrphanKiller(lambda: now[0])
    assert leftovers.end({(other, another.start + 1)}) == []
    assert processes.inspect(other) is not None
    assert leftovers.end({(pid, state.start)}) == [pid]
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", 5, "its death")
    monkeypatch.setattr(processes, "kill", lambda *process: bool(tries.append(now[0])))  # type: ignore[func-returns-value]
    deaf = OrphanKiller(lambda: now[0])
    for second in range(120):
        now[0] = float(second)
        deaf.end({(pid, state.start)})
    assert tries == [0.0, 2.0, 10.0, 30.0]


def test_foreign_process_beside_a_live_rank_makes_the_device_foreign(start: Start) -> None:
    """A35: a shared device is not offered to more jobs."""
    occupants, ours, theirs = OccupancyChecker(), start(GPUSCHED_SCOPE="scope-1", GPUSCHED_JOB_ID="1"), start()
    judged(occupants, a_reading(4, ours, theirs), ALLOCATED)
    assert judged(occupants, a_reading(4, ours, theirs), ALLOCATED) == ("foreign", f"pid {theirs} of {ME} (sleep)")


def test_occupant_names_three_processes_and_counts_the_others(start: Start) -> None:
    occupants, pids = OccupancyChecker(), [start() for _ in range(5)]
    judged(occupants, a_reading(4, *pids))
    assert judged(occupants, a_reading(4, *pids))[1].endswith("(sleep) and 2 more")


def test_memory_left_by_a_rank_makes_the_device_dirty_until_it_is_freed() -> None:
    """A34: no process shows, the memory is still taken."""
    occupants = OccupancyChecker()
    judged(occupants, a_reading(4))
    judged(occupants, a_reading(40_000), ALLOCATED)
    judged(occupants, a_reading(39_000))
    assert judged(occupants, a_reading(39_000)) == ("dirty", "39000 MiB are still in use after a job ended")
    assert judged(occupants, a_reading(60)) == ("clear", "")


def test_memory_is_compared_only_with_the_use_while_free() -> None:
    """A base that is not known blocks nothing; nor does memory that no rank of ours can have left."""
    restarted = OccupancyChecker()
    assert judged(restarted, a_reading(40_000), ALLOCATED) == ("clear", "")
    assert [judged(restarted, a_reading(40_000)) for _ in range(3)] == [("clear", "")] * 3
    never_held = OccupancyChecker()
    judged(never_held, a_reading(4))
    assert [judged(never_held, a_reading(40_000)) for _ in range(3)] == [("clear", "")] * 3


def test_base_memory_survives_a_restart_of_the_agent(tmp_path: Path) -> None:
    """A34: memory that is left behind does not become the base."""
    first_agent = OccupancyChecker(tmp_path)
    judged(first_agent, a_reading(4))
    judged(first_agent, a_reading(40_000), ALLOCATED)
    restarted = OccupancyChecker(tmp_path)
    judged(restarted, a_reading(40_000))
    assert judged(restarted, a_reading(40_000))[0] == "dirty"
    (tmp_path / "devices.json").write_text("[]")
    assert judged(OccupancyChecker(tmp_path), a_reading(40_000)) == ("clear", "")


def test_check_after_an_end_needs_one_reading_and_spares_shared_devices(start: Start) -> None:
    """A34: also of a rank that was never seen on its device, and whose process hides."""
    occupants, pid = OccupancyChecker(), start()
    judged(occupants, a_reading(4))
    assert occupants.occupants_of([a_reading(40_000)], NO_RANKS) == {
        "a": "40000 MiB are still in use after a job ended"
    }
    assert occupants.occupants_of([a_reading(4, pid)], NO_RANKS) == {"a": f"pid {pid} of {ME} (sleep)"}
    assert judged(occupants, a_reading(4, pid))[0] == "foreign", "at once"
    assert occupants.occupants_of([a_reading(40_000)], ALLOCATED) == {}, "a shared device"
    assert occupants.occupants_of([a_reading(60)], NO_RANKS) == {}


def test_occupancy_is_unknown_when_the_driver_reports_nothing() -> None:
    """A19: a missing reading neither blocks nor frees."""
    occupants = OccupancyChecker()
    assert [judged(occupants, a_reading(None, unknown=True)) for _ in range(3)] == [(None, "")] * 3
    assert judged(occupants, Reading(uuid="a", lost=True)) == (None, "")


# --- the agent --------------------------------------------------------------------------------------------------------


def latest(control: Control) -> Reading | None:
    readings = [sync.readings[0] for sync in control.syncs if sync.readings]
    return readings[-1] if readings else None


def occupancy(control: Control) -> str | None:
    reading = latest(control)
    return reading.occupancy if reading else None


def test_agent_reports_a_foreign_process_and_its_end(
    agent: Agent, control: Control, environment: dict[str, str], start: Start
) -> None:
    """A35"""
    pid = start()
    set_devices(environment, A100 + str(pid))
    agent.start(environment=environment)
    eventually(lambda: occupancy(control) == "foreign", 20, "the foreign process")
    latest_reading = latest(control)
    assert latest_reading is not None and latest_reading.occupant == f"pid {pid} of {ME} (sleep)"
    set_devices(environment, A100)
    eventually(lambda: occupancy(control) == "clear", 10, "the way back")


def test_processes_and_memory_of_a_live_rank_are_clear(
    agent: Agent, control: Control, environment: dict[str, str], tmp_path: Path
) -> None:
    """A34, A35: one that hides in a session of its own and without environment, too; what stays after the end is."""
    set_devices(environment, A100)
    agent.start(environment=environment)
    eventually(lambda: occupancy(control) == "clear", 20, "a look at the free device")
    child = tmp_path / "child"
    script = f"(setsid env -i sleep 60 & echo $! > {child}.new); mv {child}.new {child}; sleep 60"
    key = control.run("sh", "-c", script, device_uuids=["GPU-fake-0"])
    pid = control.start_of(key).pid
    eventually(child.exists, 10, "the hidden child")
    busy = A100.replace("|4|0|31|", "|40000|99|55|")
    set_devices(environment, f"{busy}{pid},{child.read_text().strip()}")
    eventually(lambda: _looks(control, 55) >= 5, 10, "looks at the busy device")
    assert {r.occupancy for sync in control.syncs for r in sync.readings} <= {"clear"}
    control.stop(key)
    control.end_of(key)
    set_devices(environment, A100.replace("|4|0|31|", "|40000|0|56|"))
    eventually(lambda: occupancy(control) == "dirty", 10, "the memory left behind")
    set_devices(environment, A100)
    eventually(lambda: occupancy(control) == "clear", 10, "the way back")


def test_orphans_on_a_gpu_are_killed_and_foreign_processes_are_not(
    agent: Agent, control: Control, environment: dict[str, str], start: Start
) -> None:
    """A34, A35: a process that no supervisor is above, known by the mark of the rank."""
    set_devices(environment, A100)
    agent.start(environment=environment)
    key = control.run("sleep", "60", device_uuids=["GPU-fake-0"])
    control.start_of(key)
    [scope] = agent.scopes()
    leftover, foreign = start(GPUSCHED_SCOPE=scope), start()
    set_devices(environment, f"{A100}{leftover},{foreign}")
    eventually(lambda: occupancy(control) == "foreign", 10, "the foreign process")
    assert is_alive(leftover), "as long as its rank lives"
    control.stop(key)
    control.end_of(key)
    eventually(lambda: not is_alive(leftover), 10, "the end of what was left")
    assert is_alive(foreign)


def test_lost_gpu_is_reported_no_later_than_its_jobs_failure(
    agent: Agent, control: Control, environment: dict[str, str], tmp_path: Path
) -> None:
    """A38: the next reading would be a second too late, the job would be blamed."""
    set_devices(environment, A100)
    devices = environment["FAKE_NVML"]
    script = f"sed 's/|ok|/|lost|/' {devices} > {devices}.2; mv {devices}.2 {devices}; exit 1"
    key = control.run("sh", "-c", script, device_uuids=["GPU-fake-0"])
    agent.start("--heartbeat-seconds", "60", environment=environment)
    control.end_of(key)
    [first] = [n for n, sync in enumerate(control.syncs) if any(isinstance(report, Ended) for report in sync.reports)][
        :1
    ]
    assert any(reading.lost for sync in control.syncs[: first + 1] for reading in sync.readings)


def test_end_is_reported_with_the_occupants_of_its_devices(
    agent: Agent, control: Control, environment: dict[str, str]
) -> None:
    """A34: at once if nothing is, and if something is, the server accepts it when it gives the device back."""
    set_devices(environment, A100)
    agent.start(environment=environment)
    eventually(lambda: occupancy(control) == "clear", 20, "a look at the free device")
    clean = control.run("true", device_uuids=["GPU-fake-0"])
    assert control.end_of(clean).left == {}
    devices = environment["FAKE_NVML"]
    script = f"sed 's/|4|0|31|/|40000|0|31|/' {devices} > {devices}.2; mv {devices}.2 {devices}"
    key = control.run("sh", "-c", script, job=2, device_uuids=["GPU-fake-0"])
    assert control.end_of(key).left == {"GPU-fake-0": "40000 MiB are still in use after a job ended"}
    report_at = next(n for n, sync in enumerate(control.syncs) if any(report.key == key for report in sync.reports))
    after = control.syncs[report_at + 1 :]
    assert {r.occupancy for sync in after for r in sync.readings} <= {"dirty"}


def _looks(control: Control, celsius: int) -> int:
    return sum(r.temperature_celsius == celsius for sync in control.syncs for r in sync.readings)
