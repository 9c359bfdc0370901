"""Ranks of one Unix user do not see each other's /tmp, by the real kernel as far as this one allows; and the config can
make CPU a ceiling."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent.isolation import cgroup_base, confinement, private_tmp
from gpusched.agent.isolation.confinement import Confinement
from gpusched.protocol.agent_messages import RankSpec
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually

USER = "nobody"
needs_namespaces = pytest.mark.skipif(
    not confinement.can_hide_tmp(), reason="mount namespaces need root, and a kernel that lets it have them"
)


@pytest.fixture
def agent(agent: Agent) -> Iterator[Agent]:
    """With its directory where the real one is: not below /tmp, which is hidden from the ranks."""
    folder = Path(tempfile.mkdtemp(prefix="gpusched-agent-", dir="/var/lib"))
    folder.chmod(0o755)
    agent.directory = folder / "agent"
    yield agent
    shutil.rmtree(folder, ignore_errors=True)


def log_of(control: Control, key: str) -> str:
    eventually(lambda: len(control.logs.get(key, b"")) >= control.end_of(key).log_bytes, 5, "the log")
    return control.logs.get(key, b"").decode()


@needs_namespaces
def test_rank_has_a_private_tmp_that_is_removed_with_it(agent: Agent, control: Control) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as outside:
        script = (
            "umask 077; echo mine > /tmp/x && echo theirs > /var/tmp/y && cat $TMPDIR/x $TMPDIR/y; "
            f"ls /tmp; [ -e {outside.name} ] || echo hidden; stat -c %U /tmp; while [ ! -e /tmp/go ]; do sleep 0.1; done"
        )
        first = control.run("sh", "-c", script, user=USER)
        second = control.run(
            "sh", "-c", "sleep 0.5; ls /tmp /var/tmp; touch /tmp/go /tmp/gpusched-test-z", user=USER, job=2
        )
        agent.start()
        assert control.end_of(second).exit_code == 0
        assert log_of(control, second) == "/tmp:\n\n/var/tmp:\n"
        assert first not in control.ended, "another user cannot release it by a file in /tmp"
        assert control.joins[0].facts.isolation is not None and "tmp" in control.joins[0].facts.isolation.limits
        control.stop(first)
        control.end_of(first)
        assert log_of(control, first).splitlines()[:6] == ["mine", "theirs", "x", "y", "hidden", USER]
        assert not os.path.exists("/tmp/gpusched-test-z")
    assert not list(agent.directory.glob("nodes/*/ranks/*/tmp"))


@needs_namespaces
def test_config_lets_ranks_share_tmp(agent: Agent, control: Control) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as outside:
        key = control.run("ls", "-d", outside, user=USER)
        agent.start(environment={"GPUSCHED_AGENT_PRIVATE_TMP": "no"})
        assert log_of(control, key) == f"{outside}\n"
        assert control.joins[0].facts.isolation is not None
        assert "tmp" not in control.joins[0].facts.isolation.limits


@pytest.mark.parametrize(
    ("directory", "is_hidden"),
    [("/var/lib/gpusched-agent", False), ("/tmp", True), ("/tmp/agent", True), ("/tmpfs", False), ("/var/tmp/a", True)],
)
def test_agent_below_tmp_keeps_its_ranks_files_visible(directory: str, is_hidden: bool) -> None:
    assert private_tmp.hides(directory) == is_hidden


def test_confinement_follows_the_config(tmp_path: Path) -> None:
    def policy_of(**policy: bool) -> Confinement:
        return Confinement(cgroup_base.Lookup(cgroup_base.Base("/g", ("cpu",))), "", "", True, 0o077, **policy)

    spec = RankSpec(name="x", job_id=1, attempt=1, rank=0, ranks=1, argv=["true"], cpu_cores=2.0)
    group = confinement.confined(policy_of(has_ceiling=True), tmp_path, spec, "s")["cgroup"]
    assert group["limits"] == {"cpu.weight": "200", "cpu.max": "200000 100000"}
    assert "cpu.max" not in confinement.confined(policy_of(), tmp_path, spec, "s")["cgroup"]["limits"]
    assert "cpu ceiling" in confinement.isolation(policy_of(has_ceiling=True)).limits
    assert confinement.isolation(policy_of()).limits == ["cpu"]
