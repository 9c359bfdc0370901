"""`gpusched-agent join` and the config of a node, as its owner meets them at the terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.agent import config
from gpusched.agent.config import Config, ConfigError, Runtime
from tests.agent.conftest import ROOT
from tests.agent.control import Control


def gpusched_agent(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUSCHED_")}
    return subprocess.run(
        [sys.executable, "-m", "gpusched.agent.main", *arguments], cwd=ROOT, env={**kept, **environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def written(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "agent.toml").write_text(text)
    return {"GPUSCHED_AGENT_CONFIG": str(tmp_path / "agent.toml")}


def test_join_writes_the_identity_where_only_its_user_reads_it_and_says_what_is_next(
    tmp_path: Path, control: Control
) -> None:
    """A33: and joining again is the same node."""
    for _ in range(2):
        done = gpusched_agent("join", "--data-dir", str(tmp_path), "--name", "gpu-1", control.url, "j1.token")
        assert (done.returncode, done.stdout) == (0, f"joined {control.url} as node gpu-1\n")
    assert "gpusched-agent doctor" in done.stderr and "then start it:" in done.stderr
    path = tmp_path / "nodes" / "gpu-1" / "identity.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len({join.node_key for join in control.joins}) == 1


def test_join_says_why_it_cannot(tmp_path: Path, control: Control) -> None:
    control.is_away = True
    for url, words in ((control.url, "refused node"), ("http://127.0.0.1:1", "cannot be reached")):
        done = gpusched_agent("join", "--data-dir", str(tmp_path), url, "j1.token")
        assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_join_keeps_to_the_directory_of_the_config_unless_told_otherwise(tmp_path: Path, control: Control) -> None:
    told = written(tmp_path, f"data_dir = '{tmp_path}/configured'\n")
    gpusched_agent("join", "--name", "a", control.url, "j1.token", **told)
    gpusched_agent("join", "--name", "a", "--data-dir", f"{tmp_path}/flag", control.url, "j1.token", **told)
    gpusched_agent("join", "--name", "a", control.url, "j1.token", **told, GPUSCHED_AGENT_DIR=f"{tmp_path}/variable")
    for place in ("configured", "flag", "variable"):
        assert (tmp_path / place / "nodes" / "a" / "identity.json").exists()


@pytest.mark.parametrize("command", [("join", "http://127.0.0.1:1", "x"), ("run",)])
def test_a_config_that_is_wrong_keeps_the_agent_from_starting_and_says_where(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = gpusched_agent(*command, **written(tmp_path, "mount = ['/data']\n"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"gpusched-agent: {tmp_path}/agent.toml: unknown key 'mount'; valid keys: allow_root, " in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mounts = '/data'", "mounts must be a list of strings"),
        ("mounts = ['data']", "'data' must be an absolute path"),
        ("mounts = ['/a:/b']", "'/a:/b' must be an absolute path"),
        ("allow_root = 1", "allow_root must be true or false"),
        ("log_max_mb = true", "log_max_mb must be a number"),
        ("data_dir = 3", "data_dir must be text"),
        ("[runtimes.lxc]", "unknown key 'lxc'"),
        ("[runtimes.podman]\ncommands = ['podman']", "unknown key 'commands'; valid keys: arguments, command"),
        ("[runtimes.podman]\ncommand = []", "command must name a program"),
        ("runtimes = 1", "runtimes must be a table"),
        ("allow_root =", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_config_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.load(written(tmp_path, text))


def test_variables_win_over_the_file_and_the_file_over_nothing(tmp_path: Path) -> None:
    told = written(
        tmp_path, "mounts = ['/data:ro']\nallow_root = true\n[runtimes.podman]\ncommand = ['sudo', 'podman']\n"
    )
    found = config.load(told)
    podman = Runtime(("sudo", "podman"))
    assert (found.mounts, found.allow_root, found.runtimes) == (("/data:ro",), True, {"podman": podman})
    own = {
        "GPUSCHED_AGENT_MOUNTS": "/a /b:ro",
        "GPUSCHED_AGENT_ALLOW_ROOT": "no",
        "GPUSCHED_AGENT_RUNTIMES": "podman docker",
    }
    found = config.load({**told, **own})
    assert (found.mounts, found.allow_root) == (("/a", "/b:ro"), False)
    assert found.runtimes == {"podman": podman, "docker": Runtime(("docker",))}
    with pytest.raises(ConfigError, match="GPUSCHED_AGENT_ALLOW_ROOT must be true or false, not 'maybe'"):
        config.load({"GPUSCHED_AGENT_ALLOW_ROOT": "maybe"})
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load({"GPUSCHED_AGENT_CONFIG": f"{tmp_path}/none"})
    assert list(Config().runtimes) == ["podman", "docker", "apptainer"]
