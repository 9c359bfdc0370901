"""A22: a recorded cycle is rerun elsewhere, has the recorded plan, and explains why not another node."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from scheduling.cycle import recording
from scheduling.engine.model import Policy, Snapshot
from scheduling.engine.whatif.replay import Recording, record, rerun, why_not
from tests.engine import states
from tests.engine.scenario import NOW, ask, cluster, gpu, job, node, nodes_of, running_on
from tests.engine.test_determinism import state
from tests.engine.test_invariants import in_small_states

ROOT = Path(__file__).parents[2]


@in_small_states
@given(states.snapshots(), states.policies)
def test_recording_replays_to_the_recorded_plan_byte_for_byte(snapshot: Snapshot, policy: Policy) -> None:
    """A22: whatever is in it, all values come back as they were."""
    recorded = record(snapshot, policy, NOW)
    read = recording.decode(recording.encode(recorded))
    assert repr(read.recording) == repr(recorded)
    assert recording.encode_plan(rerun(read.recording)) == read.plan


@pytest.mark.parametrize("number", [2, 3])
def test_recording_of_an_older_format_still_replays(number: int) -> None:
    """A22: a recording without taints and affinities (2) or bookings (3), with starts, a preemption, a promise and
    waits. The evidence of reasons may have changed since."""
    file = Path(__file__).parent / "recorded" / f"format_{number}.json"
    recorded = recording.decode(file.read_bytes()).recording
    assert recorded.plan.placements and recorded.plan.preemptions and recorded.plan.waits
    second_plan = rerun(recorded)
    for name in ("placements", "preemptions", "claims", "reservation"):
        assert getattr(second_plan, name) == getattr(recorded.plan, name)
    assert [wait[:2] for wait in second_plan.waits] == [wait[:2] for wait in recorded.plan.waits]


NODES = (
    node(1, gpus=2),
    node(2, is_open=False),
    node(3, is_online=False),
    node(4, labels={"zone": "b"}),
    node(5, gpus=[gpu(500 + n, model="NVIDIA H100 PCIe") for n in range(8)]),
    node(6, gpus=[gpu(600 + n, memory_mb=40_000) for n in range(8)]),
    node(7, gpus=[gpu(700 + n, is_healthy=n > 5) for n in range(8)]),
    node(8, gpus=[gpu(800 + n, is_slowed=n < 6) for n in range(8)]),
    node(9, cpu=2),
    node(10, memory_mb=1000),
    node(11, gpus=[gpu(1100 + n, island=n % 4) for n in range(8)]),
    node(12, gpus=[gpu(1200 + n, island=0) for n in range(4)]),
    node(13, gpus=[gpu(1300 + n, island=n // 4) for n in range(8)]),
    node(14, gpus=[gpu(1400 + n, island=0) for n in range(4)]),
)
WANTS = ask(
    4, cpu_milli=4000, memory_mb=2000, gpu_models=("A100",), gpu_memory_mb=60_000, topology="nvlink", apart="web"
)


def full_recording() -> Recording:
    """Record a job that only nodes 12 and 13 could hold; a job on node 14 has the same anti-affinity key."""
    there = running_on(cluster(NODES[13]), job(99, apart="web", cpu_milli=0))
    return record(replace(there, nodes=(*NODES[:13], there.nodes[0]), jobs=(job(1, request=WANTS),)), Policy(), NOW)


@pytest.mark.parametrize(
    ("node_id", "name", "words"),
    [
        (1, "model", "2 of its GPUs are A100; a rank needs 4"),
        (2, "closed", "it is cordoned or draining"),
        (3, "closed", "it does not report"),
        (5, "model", "0 of its GPUs are A100; a rank needs 4"),
        (6, "memory", "0 of its GPUs have 60000 MiB under the load ceiling; a rank needs 4"),
        (7, "health", "6 suitable GPUs are out of service; a rank needs 4"),
        (8, "hot", "6 suitable GPUs are slowed down by heat; a rank needs 4"),
        (9, "cpu", "2 CPU cores are free; a rank needs 4"),
        (10, "node_memory", "1000 MiB of memory are free; a rank needs 2000"),
        (11, "topology", "no 4 free GPUs are joined as topology nvlink asks"),
        (14, "free", "3 of 4 suitable GPUs are free; a rank needs 4"),
    ],
)
def test_why_not_the_other_node_names_the_test_that_failed(node_id: int, name: str, words: str) -> None:
    """A22"""
    result = why_not(full_recording(), 1, node_id)
    assert (name, words) in [tuple(entry) for entry in result]


def test_why_not_names_labels_and_anti_affinity() -> None:
    state = cluster(node(1, labels={"zone": "a"}), node(2), jobs=[job(1, node_selector=(("zone", "a"),))])
    [result] = why_not(record(state, Policy(), NOW), 1, 2)
    assert tuple(result) == ("labels", "it has no label zone=a")
    state = replace(running_on(cluster(node(1)), job(9, apart="web")), jobs=(job(1, apart="web"),))
    [result] = why_not(record(state, Policy(), NOW), 1, 1)
    assert result.name == "apart"


def test_why_not_is_empty_for_the_chosen_node_and_names_the_score_of_another() -> None:
    recorded = full_recording()
    [chosen] = nodes_of(recorded.plan, 1)
    other = 25 - chosen
    assert why_not(recorded, 1, chosen) == []
    [lost] = why_not(recorded, 1, other)
    assert lost.name == "score"
    assert f"that of n{chosen} is " in lost.sentence


def test_why_not_counts_free_gpus_when_the_job_was_decided_on() -> None:
    """Earlier placements of the cycle count, later ones do not."""
    first, second = job(1, gpus=8, age=100), job(2, gpus=8, age=50)
    recorded = record(cluster(node(1), node(2), jobs=[first, second]), Policy(), NOW)
    [of_first], [of_second] = (nodes_of(recorded.plan, job_id) for job_id in (1, 2))
    assert [entry.name for entry in why_not(recorded, 1, of_second)] == ["score"]
    assert [entry.name for entry in why_not(recorded, 2, of_first)] == ["free"]


def test_why_not_refuses_a_job_that_was_not_waiting() -> None:
    with pytest.raises(KeyError):
        why_not(full_recording(), 2, 1)


# --- the command, on a machine without a database ---------------------------------------------------------------------


def replay(*args: str | Path) -> subprocess.CompletedProcess[str]:
    nowhere = {"GPUSCHED_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    command = [sys.executable, "manage.py", "replay", *map(str, args)]
    return subprocess.run(command, env={**os.environ, **nowhere}, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "cycle.json"
    path.write_bytes(recording.encode(record(state(), Policy(), NOW)))
    return path


def test_the_command_reruns_a_cycle_without_a_database(file: Path) -> None:
    """A22: another process; the plan is the recorded one, and both questions are answered."""
    done = replay(file, "--why", "3", "--why-not", "3", "n1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the plan is the recorded one, byte for byte: " in done.stdout
    assert "job 3 " in done.stdout


def test_replay_command_fails_when_the_plan_differs(file: Path, tmp_path: Path) -> None:
    content = json.loads(file.read_bytes())
    content["plan"]["placements"].pop()
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(content, separators=(",", ":"), ensure_ascii=False))
    done = replay(changed)
    assert done.returncode == 1
    assert "the plan is NOT the recorded one" in done.stderr


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', "{}", '{"format": 1, "now": "x"}'])
def test_decode_refuses_a_file_that_is_no_recording(content: str) -> None:
    """A55"""
    with pytest.raises(ValueError, match="this is not a recorded cycle"):
        recording.decode(content.encode())


def test_decode_names_an_unreadable_format(file: Path) -> None:
    content = file.read_bytes().replace(b'{"format":4', b'{"format":7', 1)
    with pytest.raises(ValueError, match="has format 7; this version reads 2, 3, 4"):
        recording.decode(content)
