"""Agents one version older or newer than the server (A57): what they do not say yet, or say more, does no harm."""

import json
from pathlib import Path

import msgspec
import pytest

from gpusched.agent import rankdir
from gpusched.agent.journal import Journal
from gpusched.protocol.messages import Desired, LogAnswer, RankSpec, Run, Sync, key_of
from jobs.models import Job
from nodes.agent_api import append_log
from nodes.sync import process
from tests.factories import make_node, now, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def say(node, **message):
    """A message as it comes over the wire; gives the answer as it goes there."""
    text = json.dumps({"seq": 1, "at": now(), "boot_id": "boot-1", **message})
    [answer] = process([(node.id, msgspec.json.decode(text, type=Sync))])
    return json.loads(msgspec.json.encode(answer))


@pytest.mark.parametrize("more", [{}, {"a_later_word": {"of": ["any", "kind"]}}], ids=["older", "newer"])
def test_a_job_runs_with_an_agent_of_another_version(more, user, tenant):
    """A57: the least that any agent ever said; and each part with a field that this server does not know."""
    node = make_node(gpus=1)
    job = submit(user, tenant)
    run_cycle()
    [order] = say(node)["assignments"]
    key, uuid = order["key"], node.devices[0].uuid
    started = {"kind": "started", "key": key, "at": now(), "pid": 1, **more}
    reading = {"uuid": uuid, "temperature_celsius": 40, **more}
    answer = say(node, held=[key], running=[key], reports=[started], readings=[reading], **more)
    assert answer["started"] == [key]
    assert Job.objects.get(pk=job).state == "running"
    ended = {"kind": "ended", "key": key, "at": now(), "reason": "exited", "exit_code": 0, **more}
    assert say(node, reports=[ended], **more)["acknowledged"] == [key]
    assert Job.objects.get(pk=job).state == "completed"


def test_an_older_server_says_less_and_a_newer_one_more():
    """A57: as this agent reads it."""
    spec = {"job_id": 1, "attempt": 1, "rank": 0, "ranks": 1, "name": "x", "argv": ["true"]}
    run = {"action": "run", "key": "1.1.0", "spec": {**spec, "later": 1}, "later": [1]}
    told = msgspec.json.decode(json.dumps({"assignments": [run], "later": {}}), type=Desired)
    assert told.assignments == [Run(key="1.1.0", spec=RankSpec(**spec))]  # type: ignore[arg-type]
    assert msgspec.json.decode(b'{"size": 7}', type=LogAnswer) == LogAnswer(size=7)
    assert msgspec.json.decode(b'{"size": 7, "most_bytes": 9, "later": 1}', type=LogAnswer).most_bytes == 9


def test_a_log_of_an_agent_that_does_not_cut_is_taken(user, tenant, rf):
    """A57: it goes on from the size that it is told, and hears more than it reads."""
    node = make_node(gpus=1)
    job = submit(user, tenant)
    run_cycle()
    node.start_all()
    request = rf.post(
        f"/agent/logs?key={key_of(job, 1, 0)}&offset=0",
        b"hello",
        content_type="application/octet-stream",
        headers={"Authorization": f"Bearer {node.credential}"},
    )
    assert json.loads(append_log(request).content)["size"] == 5


@pytest.mark.parametrize("more", [{}, {"a_later_word": 1}], ids=["older", "newer"])
def test_ranks_whose_supervisor_is_of_another_version_are_understood(more, tmp_path: Path):
    """A57: supervisors outlive the upgrade of their agent."""
    journal = Journal(tmp_path, rankdir.boot_id())
    directory = tmp_path / "ranks" / "1.1.0"
    directory.mkdir()
    rankdir.write(directory, rankdir.STARTED, {"at": now(), "pid": 1, **more})
    rankdir.write(directory, rankdir.EXIT, {"at": now(), "reason": "exited", "exit_code": 3, **more})
    started, ended, is_alive = journal.look("1.1.0")
    assert started is not None and ended is not None
    assert (started.pid, ended.exit_code, ended.seconds_ago, is_alive) == (1, 3, None, False)
