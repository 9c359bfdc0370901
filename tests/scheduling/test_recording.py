"""A22, A56: what is recorded of a live cluster: enough to rerun its cycle, nothing that anybody keeps to themselves."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from scheduling.cycle import recording
from scheduling.engine.whatif.replay import rerun
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def busy(user, tenant):
    node = make_node(gpus=8, name="n1")
    secret = {"command": ["hush"], "args": ["hush"], "environment": {"TOKEN": "hush"}, "workdir": "/hush"}
    submit(user, tenant, gpu_count=4, max_runtime_minutes=60, **secret)
    run_cycle()
    node.start_all()
    return [submit(user, tenant, gpu_count=count, **secret) for count in (2, 8, 4)]


def test_dump_of_the_live_cluster_replays_to_the_same_plan(busy, tmp_path, capsys):
    """A22: and says for each job why, and why not there."""
    file = tmp_path / "cycle.json"
    call_command("dump_snapshot", str(file))
    assert "3 waiting and 1 live jobs recorded" in capsys.readouterr().err
    read = recording.decode(file.read_bytes())
    assert {job.id for job in read.recording.snapshot.jobs} == set(busy)
    assert recording.encode_plan(rerun(read.recording)) == read.plan
    out = StringIO()
    call_command("replay", str(file), "--why", str(busy[1]), "--why-not", str(busy[1]), "n1", stdout=out)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith(f"job {busy[1]} waits: ")
    assert any("GPUs it would start" in line for line in lines)
    assert any("suitable GPUs are free; a rank needs 8" in line for line in lines)
    assert lines[-1].startswith("the plan is the recorded one, byte for byte: 1 placements")


def test_dump_contains_no_command_and_no_environment(busy):
    """A56"""
    out = StringIO()
    call_command("dump_snapshot", stdout=out)
    assert "hush" not in out.getvalue()
    assert "TOKEN" not in out.getvalue()


def test_unreadable_or_unwritable_file_is_a_sentence(busy, tmp_path):
    """A58"""
    for command in ("dump_snapshot", "replay"):
        with pytest.raises(CommandError, match=r"cannot (write|read) /nowhere/x: No such file or directory"):
            call_command(command, "/nowhere/x")
    file = tmp_path / "cycle.json"
    call_command("dump_snapshot", str(file))
    unknown = str(max(busy) + 1000)
    for question in (["--why", unknown], ["--why-not", unknown, "n1"], ["--why-not", str(busy[0]), "n9"]):
        with pytest.raises(CommandError, match="in this recording"):
            call_command("replay", str(file), *question)
