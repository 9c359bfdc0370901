"""Who is on a device (A34, A35): real processes, the real agent, and the fake driver that lists them."""

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
NOBODY = Live(frozenset(), frozenset(), frozenset(), frozenset(), frozenset(), frozenset)
HELD = Live(frozenset({"a"}), frozenset({"scope-1"}), frozenset({1}), frozenset(), frozenset(), frozenset)

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process of our own that no job knows of; gives its pid."""
    started = []

    def one(**environment: str) -> int:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUSCHED_")}
        process = subprocess.Popen(["sleep", "60"], env={**clean, **environment}, start_new_session=True)
        started.append(process)
        # It is told to be started a moment before what it was started with is to be read.
        eventually(Path(f"/proc/{process.pid}/environ").read_bytes, 10, "its environment")
        return process.pid

    yield one
    for process in started:
        process.kill()
        process.wait()


def look(memory: int | None = 4, *pids: int, unknown: bool = False) -> Reading:
    return Reading(uuid="a", memory_used_mb=memory, process_ids=None if unknown else list(pids))


def judged(occupants: OccupancyChecker, reading: Reading, live: Live = NOBODY) -> tuple[str | None, str]:
    [told] = occupants.judge([reading], live)
    return told.occupancy, told.occupant


# --- the judgement ----------------------------------------------------------------------------------------------------


def test_one_look_is_not_enough_to_call_a_device_foreign(start: Start) -> None:
    """A35: a process is listed for a moment after its end. The way back needs one look."""
    occupants, pid = OccupancyChecker(), start()
    assert judged(occupants, look(4, pid)) == (None, "")
    assert judged(occupants, look()) == ("clear", "")
    assert judged(occupants, look(4, pid)) == (None, "")
    assert judged(occupants, look(4, pid)) == ("foreign", f"pid {pid} of {ME} (sleep)")
    assert judged(occupants, look()) == ("clear", "")


def test_a_process_that_carries_a_job_but_is_of_no_live_rank_is_dirt(start: Start) -> None:
    """A34"""
    occupants, pid = OccupancyChecker(), start(GPUSCHED_JOB_ID="7", GPUSCHED_SCOPE="scope-0")
    judged(occupants, look(4, pid))
    assert judged(occupants, look(4, pid), HELD) == ("dirty", f"pid {pid} of {ME} (sleep)")


def test_a_process_of_the_session_of_an_ended_rank_is_dirt(start: Start) -> None:
    """A34: also one that hides its environment."""
    occupants, pid = OccupancyChecker(), start()
    ended = Live(frozenset(), frozenset(), frozenset(), frozenset({pid}), frozenset(), frozenset)
    judged(occupants, look(4, pid), ended)
    assert judged(occupants, look(4, pid), ended)[0] == "dirty"


def test_a_process_that_was_a_live_ranks_is_dirt_after_the_ranks_end(start: Start) -> None:
    """A34: whatever became of the journal meanwhile."""
    occupants, pid = OccupancyChecker(), start()
    for _ in range(3):
        live = Live(frozenset({"a"}), frozenset({"s"}), frozenset({pid}), frozenset(), frozenset(), frozenset)
        assert judged(occupants, look(4, pid), live) == ("clear", "")
    judged(occupants, look(4, pid))
    assert judged(occupants, look(4, pid))[0] == "dirty"


def test_only_what_is_proved_to_be_an_ended_ranks_is_left_to_be_killed(start: Start) -> None:
    """A34: by the mark of a rank that there was, or because it was on the device as the rank's. A35: nothing else."""
    occupants = OccupancyChecker()
    marked, unknown, plain = start(GPUSCHED_SCOPE="scope-1"), start(GPUSCHED_SCOPE="x", GPUSCHED_JOB_ID="7"), start()
    every = look(4, marked, unknown, plain)
    judged(occupants, every, HELD)
    assert occupants.orphans == set()
    ended = Live(frozenset(), frozenset(), frozenset(), frozenset({plain}), frozenset({"scope-2"}), frozenset)
    judged(occupants, every, ended)
    assert {pid for pid, _ in occupants.orphans} == {marked}
    known = start(GPUSCHED_SCOPE="scope-2")
    judged(occupants, look(4, known), ended)
    assert {pid for pid, _ in occupants.orphans} == {known}
    judged(occupants, look())
    assert occupants.orphans == set()


def test_what_was_left_is_killed_four_times_in_half_a_minute_and_then_no_more(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A34: and each time only if it is still the same process."""
    pid, other, now = start(), start(), [0.0]
    tries: list[float] = []
    seen, another = processes.inspect(pid), processes.inspect(other)
    assert seen is not None and another is not None
    leftovers = OrphanKiller(lambda: now[0])
    assert leftovers.end({(other, another.start + 1)}) == []
    assert processes.inspect(other) is not None
    assert leftovers.end({(pid, seen.start)}) == [pid]
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", 5, "its death")
    monkeypatch.setattr(processes, "kill", lambda *one: bool(tries.append(now[0])))  # type: ignore[func-returns-value]
    deaf = OrphanKiller(lambda: now[0])
    for second in range(120):
        now[0] = float(second)
        deaf.end({(pid, seen.start)})
    assert tries == [0.0, 2.0, 10.0, 30.0]


def test_a_foreign_process_beside_a_live_rank_is_foreign(start: Start) -> None:
    """A35: a shared device is not offered to more jobs."""
    occupants, ours, theirs = OccupancyChecker(), start(GPUSCHED_SCOPE="scope-1", GPUSCHED_JOB_ID="1"), start()
    judged(occupants, look(4, ours, theirs), HELD)
    assert judged(occupants, look(4, ours, theirs), HELD) == ("foreign", f"pid {theirs} of {ME} (sleep)")


def test_many_are_told_as_three_and_the_rest(start: Start) -> None:
    occupants, pids = OccupancyChecker(), [start() for _ in range(5)]
    judged(occupants, look(4, *pids))
    assert judged(occupants, look(4, *pids))[1].endswith("(sleep) and 2 more")


def test_memory_that_a_rank_left_is_dirt_until_it_is_gone() -> None:
    """A34: no process shows, the memory is still taken."""
    occupants = OccupancyChecker()
    judged(occupants, look(4))
    judged(occupants, look(40_000), HELD)
    judged(occupants, look(39_000))
    assert judged(occupants, look(39_000)) == ("dirty", "39000 MiB are still in use after a job ended")
    assert judged(occupants, look(60)) == ("clear", "")


def test_memory_is_judged_by_nothing_but_what_was_seen_free() -> None:
    """A base that is not known blocks nothing; nor does memory that no rank of ours can have left."""
    restarted = OccupancyChecker()
    assert judged(restarted, look(40_000), HELD) == ("clear", "")
    assert [judged(restarted, look(40_000)) for _ in range(3)] == [("clear", "")] * 3
    never_held = OccupancyChecker()
    judged(never_held, look(4))
    assert [judged(never_held, look(40_000)) for _ in range(3)] == [("clear", "")] * 3


def test_an_agent_that_is_started_again_still_knows_what_was_free(tmp_path: Path) -> None:
    """A34: memory that is left behind does not become the base."""
    before = OccupancyChecker(tmp_path)
    judged(before, look(4))
    judged(before, look(40_000), HELD)
    restarted = OccupancyChecker(tmp_path)
    judged(restarted, look(40_000))
    assert judged(restarted, look(40_000))[0] == "dirty"
    (tmp_path / "devices.json").write_text("[]")
    assert judged(OccupancyChecker(tmp_path), look(40_000)) == ("clear", "")


def test_a_look_after_an_end_needs_no_second_and_spares_what_others_hold(start: Start) -> None:
    """A34: also of a rank that was never seen on its device, and whose process hides."""
    occupants, pid = OccupancyChecker(), start()
    judged(occupants, look(4))
    assert occupants.occupants_of([look(40_000)], NOBODY) == {"a": "40000 MiB are still in use after a job ended"}
    assert occupants.occupants_of([look(4, pid)], NOBODY) == {"a": f"pid {pid} of {ME} (sleep)"}
    assert judged(occupants, look(4, pid))[0] == "foreign", "at once"
    assert occupants.occupants_of([look(40_000)], HELD) == {}, "a shared device"
    assert occupants.occupants_of([look(60)], NOBODY) == {}


def test_what_the_driver_does_not_say_is_unknown() -> None:
    """A19: a missing reading neither blocks nor frees."""
    occupants = OccupancyChecker()
    assert [judged(occupants, look(None, unknown=True)) for _ in range(3)] == [(None, "")] * 3
    assert judged(occupants, Reading(uuid="a", lost=True)) == (None, "")


# --- the agent --------------------------------------------------------------------------------------------------------


def latest(control: Control) -> Reading | None:
    readings = [sync.readings[0] for sync in control.syncs if sync.readings]
    return readings[-1] if readings else None


def occupancy(control: Control) -> str | None:
    reading = latest(control)
    return reading.occupancy if reading else None


def test_the_agent_tells_of_a_foreign_process_and_of_its_end(
    agent: Agent, control: Control, environment: dict[str, str], start: Start
) -> None:
    """A35"""
    pid = start()
    set_devices(environment, A100 + str(pid))
    agent.start(environment=environment)
    eventually(lambda: occupancy(control) == "foreign", 20, "the foreign process")
    found = latest(control)
    assert found is not None and found.occupant == f"pid {pid} of {ME} (sleep)"
    set_devices(environment, A100)
    eventually(lambda: occupancy(control) == "clear", 10, "the way back")


def test_the_processes_of_a_live_rank_are_not_foreign_and_its_memory_is_not_left(
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


def test_what_an_ended_job_left_on_its_gpu_is_killed_and_what_others_run_is_not(
    agent: Agent, control: Control, environment: dict[str, str], start: Start
) -> None:
    """A34, A35: a process that no supervisor is above, known by the mark of the rank."""
    set_devices(environment, A100)
    agent.start(environment=environment)
    key = control.run("sleep", "60", device_uuids=["GPU-fake-0"])
    control.start_of(key)
    [scope] = agent.scopes()
    left, foreign = start(GPUSCHED_SCOPE=scope), start()
    set_devices(environment, f"{A100}{left},{foreign}")
    eventually(lambda: occupancy(control) == "foreign", 10, "the foreign process")
    assert is_alive(left), "as long as its rank lives"
    control.stop(key)
    control.end_of(key)
    eventually(lambda: not is_alive(left), 10, "the end of what was left")
    assert is_alive(foreign)


def test_a_gpu_that_vanishes_under_a_job_is_told_before_or_with_its_failure(
    agent: Agent, control: Control, environment: dict[str, str], tmp_path: Path
) -> None:
    """A38: the next reading would be a second too late, the job would be blamed."""
    set_devices(environment, A100)
    devices = environment["FAKE_NVML"]
    script = f"sed 's/|ok|/|lost|/' {devices} > {devices}.2; mv {devices}.2 {devices}; exit 1"
    key = control.run("sh", "-c", script, device_uuids=["GPU-fake-0"])
    agent.start("--heartbeat-seconds", "60", environment=environment)
    control.end_of(key)
    [first] = [n for n, sync in enumerate(control.syncs) if any(isinstance(one, Ended) for one in sync.reports)][:1]
    assert any(reading.lost for sync in control.syncs[: first + 1] for reading in sync.readings)


def test_an_end_is_told_with_what_is_left_on_its_devices(
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
    told = next(n for n, sync in enumerate(control.syncs) if any(one.key == key for one in sync.reports))
    after = control.syncs[told + 1 :]
    assert {r.occupancy for sync in after for r in sync.readings} <= {"dirty"}


def _looks(control: Control, celsius: int) -> int:
    return sum(r.temperature_celsius == celsius for sync in control.syncs for r in sync.readings)
