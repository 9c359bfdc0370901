"""`gpusched cycles`: the list, and the replay of a recorded cycle."""

from tests.client.answers import REPLAY
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer

JOB = {
    "job_id": 50,
    "reason": {"code": "capacity", "sentence": "needs 8 GPUs", "next_step": "", "evidence": {}},
    "changes": ["with 4 GPUs it would start"],
    "node": "n2",
    "obstacles": [{"test": "free", "sentence": "6 of 8 suitable GPUs are free; a rank needs 8"}],
}


def test_replay_prints_decisions_and_reasons(full: FakeServer) -> None:
    assert call(full.url, "cycles", "replay", "9").stdout.splitlines() == [
        "cycle 9, 2030-01-01 10:00:00 UTC, policy fair: the same plan as recorded, byte for byte",
        "starts: job 41 on n1, n2, GPUs: 16",
        "stops:  jobs 7, 8 for job 43 (by priority)",
        "promises job 50 a start at 2030-01-01 12:00:00 UTC",
        "waits:  jobs 50, 51, 52, 53, 54, 55, 56, 57, 58, 59 and 4 more: needs 8 GPUs",
    ]


def test_replay_under_another_policy_prints_the_differences(full: FakeServer) -> None:
    other = {"policy": "shortest", "is_same": None, "starts_only_here": [52], "starts_only_recorded": []}
    full.on("GET", "/scheduling/cycles/9/replay", Answer(200, {**REPLAY, **other}))
    lines = call(full.url, "cycles", "replay", "9", "--policy", "shortest").stdout.splitlines()
    assert full.requests[-1].query == {"policy": "shortest"}
    assert lines[0].endswith("policy shortest: its decisions instead of those of fair")
    assert lines[-2:] == ["starts only here: job 52", "starts only as recorded: none"]


def test_replay_explains_a_job(full: FakeServer) -> None:
    full.on("GET", "/scheduling/cycles/9/replay", Answer(200, {**REPLAY, "job": JOB}))
    lines = call(full.url, "cycles", "replay", "9", "--job", "50", "--why-not", "n2").stdout.splitlines()
    assert full.requests[-1].query == {"job_id": "50", "node": "n2"}
    assert lines[1:] == [
        "job 50 waits: needs 8 GPUs",
        "if:    with 4 GPUs it would start",
        "on n2:",
        "  free: 6 of 8 suitable GPUs are free; a rank needs 8",
    ]


def test_replay_exits_1_when_the_plan_differs(full: FakeServer) -> None:
    full.on("GET", "/scheduling/cycles/9/replay", Answer(200, {**REPLAY, "is_same": False}))
    result = call(full.url, "cycles", "replay", "9")
    assert result.exit_code == 1
    assert "this version of gpusched plans it differently" in result.stdout


def test_replay_refuses_a_node_without_a_job(full: FakeServer) -> None:
    result = call(full.url, "cycles", "replay", "9", "--why-not", "n2")
    assert result.exit_code == 2
    assert "needs --job" in result.stderr


def test_cycles_lists_with_its_own_options(full: FakeServer) -> None:
    assert call(full.url, "cycles", "-o", "name", "--limit", "5").stdout == "9\n"
    assert full.requests[-1].query == {"limit": "6"}
