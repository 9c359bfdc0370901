"""A new credential replaces the old one: an agent that is killed at any step can still connect."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from gpusched.agent import identity as identities
from gpusched.agent.credentials import Credentials
from gpusched.agent.identity import Identity
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import Desired, Sync
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually

OLD = "n1.secret"
JOINED = Identity(name="node-a", node_key="key", url="http://127.0.0.1:1", node_id=1, credential=OLD)
# The steps of a rotation at which the agent is killed, in order.
STEPS = ["asked", "offered", "accepted", "used", "worked", "never"]


class RotatingControl(Control):
    """Knows one secret, and once it has been asked for, the next one: as nodes/inventory/rotation.py. `at`: called with
    each step, when the server has taken it and the agent does not know yet."""

    def __init__(self) -> None:
        super().__init__()
        self.secret_hash = _hash(OLD)
        self.next_hash = ""
        self.is_asking = False
        self.kill_at = ""
        self.agent: Agent | None = None
        self.refused: list[str] = []

    def admits(self, path: str, authorization: str) -> bool:
        if path == "/agent/join":
            return True
        shown = _hash(authorization.removeprefix("Bearer "))
        if self.next_hash and shown == self.next_hash:
            self.secret_hash, self.next_hash, self.is_asking = shown, "", False
            self._step("used")
        if shown != self.secret_hash:
            self.refused.append(authorization)
        return shown == self.secret_hash

    def _handle_sync(self, sync: Sync) -> Desired:
        answer = super()._handle_sync(sync)
        if not self.is_asking:
            return answer
        if sync.next_credential_hash:
            self._step("offered")
            self.next_hash = sync.next_credential_hash
        return msgspec.structs.replace(answer, rotate=True, next_credential_hash=self.next_hash)

    def _step(self, step: str) -> None:
        if self.kill_at == step and self.agent is not None:
            self.kill_at = ""
            self.agent.kill()


def _hash(credential: str) -> str:
    return hashlib.sha256(credential.partition(".")[2].encode()).hexdigest()


def stored(agent: Agent) -> Identity:
    return identities.load(agent.directory / "nodes" / "node-a", "node-a")


@pytest.fixture
def control():
    with RotatingControl() as running:
        yield running


@pytest.mark.parametrize("step", ["offered", "used", "never"])
def test_credential_is_replaced_under_a_job_and_a_kill(agent: Agent, control: RotatingControl, step: str) -> None:
    """The job continues, nothing joins again, and the old credential is refused in the end."""
    key = control.run("sh", "-c", "while [ ! -e stop ]; do sleep 0.1; done; echo done", workdir=str(agent.directory))
    agent.start()
    pid = control.start_of(key).pid
    control.agent, control.kill_at, control.is_asking = agent, step, True
    if step != "never":
        process = agent.process
        assert process is not None
        eventually(lambda: process.poll() is not None, 20, f"the kill at the step {step}")
        agent.start(environment={"GPUSCHED_JOIN_TOKEN": ""})
    eventually(lambda: control.secret_hash != _hash(OLD), 20, "the first use of the new credential")
    eventually(lambda: stored(agent).credential != OLD, 20, "the new credential on the disk")
    messages = len(control.syncs)
    eventually(lambda: len(control.syncs) > messages + 2, 20, "messages with the new credential")
    assert _hash(stored(agent).credential) == control.secret_hash
    assert (stored(agent).next_credential, stored(agent).previous_credential) == ("", OLD)
    assert len(control.joins) == 1
    assert not control.admits("/agent/sync", f"Bearer {OLD}")
    (agent.directory / "stop").touch()
    assert control.end_of(key).exit_code == 0
    assert control.started[key].pid == pid


def test_rank_that_ended_before_a_rotation_never_starts_again(agent: Agent, control: RotatingControl) -> None:
    """Its records name the control plane by the credential with which the node joined."""
    count = agent.directory / "count"
    key = control.run("sh", "-c", f"echo x >> {count}")
    agent.start()
    control.end_of(key)
    eventually(lambda: not list(agent.ranks.glob("*/spec.json")), 20, "the agent to forget the rank")
    control.is_asking = True
    eventually(lambda: stored(agent).credential != OLD, 20, "the new credential on the disk")
    agent.kill()
    agent.start(environment={"GPUSCHED_JOIN_TOKEN": ""})
    messages = len(control.syncs)
    eventually(
        lambda: len(control.syncs) > messages + 5, 20, "messages of the next agent, with the order in each answer"
    )
    assert count.read_text() == "x\n"


def test_agent_uses_its_previous_credential_after_a_restore(agent: Agent, control: RotatingControl) -> None:
    """A database restored from a backup knows the old credential alone."""
    agent.start(environment={"GPUSCHED_JOIN_TOKEN": "j1.token"})
    eventually(lambda: control.syncs, 20, "a message")
    control.is_asking = True
    eventually(lambda: stored(agent).credential != OLD, 20, "the new credential on the disk")
    control.secret_hash = _hash(OLD)
    messages = len(control.syncs)
    eventually(lambda: len(control.syncs) > messages + 2, 20, "messages with the previous credential")
    assert stored(agent).credential == OLD
    assert len(control.joins) == 1


class Server:
    """The rules of the server, without a network."""

    def __init__(self) -> None:
        self.present, self.next = _hash(OLD), ""

    def admits(self, credential: str) -> bool:
        if self.next and _hash(credential) == self.next:
            self.present, self.next = self.next, ""
        return _hash(credential) == self.present


@pytest.mark.parametrize("kill_at", STEPS)
@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_each_step_may_be_the_last_one(tmp_path: Path, kill_at: str, is_answer_lost: bool) -> None:
    """What the disk holds after each step lets the next agent connect, and finish."""
    identities.save(tmp_path, JOINED)
    server, agent = Server(), Credentials(tmp_path, JOINED)
    for run in range(2):
        for step in STEPS:
            if step == "asked":
                agent.prepare_next()
            elif step == "offered":
                server.next = agent.offer if _hash(agent.presented) == server.present else server.next
            elif step == "accepted" and not is_answer_lost:
                agent.accept(server.next)
            elif step == "used":
                while not server.admits(agent.presented):
                    assert agent.try_another(), "no credential of the agent is valid"
            elif step == "worked":
                agent.worked()
            if run == 0 and step == kill_at:
                agent = Credentials(tmp_path, identities.load(tmp_path, "node-a"))
                while not server.admits(agent.presented):
                    assert agent.try_another(), f"no credential is valid after a kill at {step}"
                agent.worked()
    assert server.admits(agent.presented)
    assert server.admits(identities.load(tmp_path, "node-a").credential)
    assert agent.identity.plane == JOINED.plane


def test_full_disk_delays_a_rotation_and_cuts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities.save(tmp_path, JOINED)
    agent = Credentials(tmp_path, JOINED)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rank_dir, "write", full)
        with pytest.raises(OSError, match="space"):
            agent.prepare_next()
        assert (agent.presented, agent.offer) == (OLD, "")
    agent.prepare_next()
    assert json.loads((tmp_path / identities.FILE).read_text())["credential"] == OLD
    assert _hash(agent.identity.next_credential) == agent.offer
