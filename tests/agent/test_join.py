"""`gpusched-agent join` and the config of a node, as seen at the terminal."""

import errno
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpusched.agent import config
from gpusched.agent.config import Config, ConfigError, Runtime
from gpusched.agent.daemon import usable
from gpusched.agent.identity import JoinError
from tests.agent.conftest import ROOT
from tests.agent.control import Control


def gpusched_agent(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUSCHED_")}
    return subprocess.run(
        [sys.executable, "-m", "gpusched.agent.main", *arguments], cwd=ROOT, env={**inherited, **environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def written(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "agent.toml").write_text(text)
    return {"GPUSCHED_AGENT_CONFIG": str(tmp_path / "agent.toml")}


def test_join_writes_a_private_identity_and_prints_the_next_step(tmp_path: Path, control: Control) -> None:
    """A33: and joining again is the same node."""
    for _ in range(2):
        result = gpusched_agent("join", "--data-dir", str(tmp_path), "--name", "gpu-1", control.url, "j1.token")
        assert (result.returncode, result.stdout) == (0, f"joined {control.url} as node gpu-1\n")
    assert "gpusched-agent doctor" in result.stderr and "then start it:" in result.stderr
    path = tmp_path / "nodes" / "gpu-1" / "identity.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len({join.node_key for join in control.joins}) == 1


def test_agent_uses_the_name_that_joined_although_it_ran_before(tmp_path: Path, control: Control) -> None:
    directory = ("--data-dir", str(tmp_path))
    assert "has not joined" in gpusched_agent("run", *directory).stderr
    gpusched_agent("join", *directory, "--name", "gpu-1", control.url, "j1.token")
    findings = json.loads(gpusched_agent("doctor", *directory, "--json").stdout)
    assert [finding["level"] for finding in findings if finding["check"] == "joined"] == ["ok"], findings


def test_join_explains_its_failure(tmp_path: Path, control: Control) -> None:
    control.is_away = True
    for url, sentence in ((control.url, "refused node"), ("http://127.0.0.1:1", "cannot be reached")):
        result = gpusched_agent("join", "--data-dir", str(tmp_path), url, "j1.token")
        assert result.returncode == 1 and sentence in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "url",
    ["http://head..example.com", f"http://{64 * 'a'}.com", "http://[::1", "head:8000", "http://head:99999", ",", " "],
)
def test_agent_names_what_is_no_server_url(tmp_path: Path, control: Control, url: str) -> None:
    """Also among several, and in a list that replaces that of a node which has joined."""
    joined = str(tmp_path / "joined")
    assert gpusched_agent("join", "--data-dir", joined, control.url, "j1.token").returncode == 0
    for arguments in (
        ("join", "--data-dir", str(tmp_path / "new"), url, "j1.token"),
        ("run", "--data-dir", joined, "--url", url),
        ("run", "--data-dir", joined, "--url", f"{control.url},{url}x"),
    ):
        result = gpusched_agent(*arguments)
        assert result.returncode == 1 and "is not a server URL" in result.stderr, arguments
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("token", ["", " ", "j1.a b", "„j1.token“", "j1.\ntoken"])
def test_join_refuses_what_is_no_token_and_does_not_print_it(tmp_path: Path, control: Control, token: str) -> None:
    result = gpusched_agent("join", "--data-dir", str(tmp_path), control.url, token)
    assert result.returncode == 1
    assert "the join token " in result.stderr and "gpusched node join-token" in result.stderr
    assert not token.strip() or token not in result.stderr


def test_join_accepts_a_token_with_spaces_around_it(tmp_path: Path, control: Control) -> None:
    result = gpusched_agent("join", "--data-dir", str(tmp_path), control.url, " j1.token\n")
    assert result.returncode == 0, result.stderr


def test_join_names_the_address_to_which_the_server_redirects(tmp_path: Path) -> None:
    class Redirect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(308)
            self.send_header("Location", f"https://head.example{self.path}")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = gpusched_agent("join", "--data-dir", str(tmp_path), url, "j1.token")
        server.shutdown()
    assert f"{url} redirects to https://head.example; join with that address" in result.stderr


@pytest.mark.parametrize("command", [("join", "http://127.0.0.1:1", "j1.token"), ("run",)])
def test_agent_explains_that_its_directory_cannot_be_used(tmp_path: Path, command: tuple[str, ...]) -> None:
    """As without the right to write there, or on a full disk."""
    (tmp_path / "file").touch()
    result = gpusched_agent(command[0], "--data-dir", str(tmp_path / "file" / "agent"), *command[1:])
    assert (result.returncode, "Traceback" in result.stderr) == (1, False), result.stderr
    assert "cannot be used (Not a directory); check its owner and the free space" in result.stderr


def test_read_only_disk_is_not_to_be_left_for_another_directory(tmp_path: Path) -> None:
    """Its node and its running jobs are there: in another directory it would be a new node."""
    with pytest.raises(JoinError) as refused, usable(tmp_path):
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / "agent.lock"))
    assert "agent.lock cannot be used (Read-only file system); look for" in str(refused.value)
    assert "data-dir" not in str(refused.value)


def test_join_uses_the_configured_directory_unless_an_option_overrides_it(tmp_path: Path, control: Control) -> None:
    variables = written(tmp_path, f"data_dir = '{tmp_path}/configured'\n")
    gpusched_agent("join", "--name", "a", control.url, "j1.token", **variables)
    gpusched_agent("join", "--name", "a", "--data-dir", f"{tmp_path}/flag", control.url, "j1.token", **variables)
    gpusched_agent(
        "join", "--name", "a", control.url, "j1.token", **variables, GPUSCHED_AGENT_DIR=f"{tmp_path}/variable"
    )
    for place in ("configured", "flag", "variable"):
        assert (tmp_path / place / "nodes" / "a" / "identity.json").exists()


@pytest.mark.parametrize("command", [("join", "http://127.0.0.1:1", "x"), ("run",)])
def test_invalid_config_stops_the_start_and_names_the_key(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = gpusched_agent(*command, **written(tmp_path, "mount = ['/data']\n"))
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"gpusched-agent: {tmp_path}/agent.toml: unknown key 'mount'; valid keys: allow_root, " in result.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
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
def test_config_error_names_the_problem(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config.load(written(tmp_path, text))


def test_variables_override_the_file_and_the_file_overrides_defaults(tmp_path: Path) -> None:
    variables = written(
        tmp_path, "mounts = ['/data:ro']\nallow_root = true\n[runtimes.podman]\ncommand = ['sudo', 'podman']\n"
    )
    config_read = config.load(variables)
    podman = Runtime(("sudo", "podman"))
    assert (config_read.mounts, config_read.allow_root, config_read.runtimes) == (
        ("/data:ro",),
        True,
        {"podman": podman},
    )
    overrides = {
        "GPUSCHED_AGENT_MOUNTS": "/a /b:ro",
        "GPUSCHED_AGENT_ALLOW_ROOT": "no",
        "GPUSCHED_AGENT_RUNTIMES": "podman docker",
    }
    config_read = config.load({**variables, **overrides})
    assert (config_read.mounts, config_read.allow_root) == (("/a", "/b:ro"), False)
    assert config_read.runtimes == {"podman": podman, "docker": Runtime(("docker",))}
    with pytest.raises(ConfigError, match="GPUSCHED_AGENT_ALLOW_ROOT must be true or false, not 'maybe'"):
        config.load({"GPUSCHED_AGENT_ALLOW_ROOT": "maybe"})
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load({"GPUSCHED_AGENT_CONFIG": f"{tmp_path}/none"})
    assert list(Config().runtimes) == ["podman", "docker", "apptainer"]
