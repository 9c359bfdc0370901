"""docs/how-to/from-one-machine-to-several.md as it is written: a job runs through all of it, and no history is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpusched.client import Client
from gpusched.lib.db.embedded import Server
from tests.docs.blocks import blocks
from tests.system import prepared
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]
GUIDE = [block.text for block in blocks(ROOT / "docs/how-to/from-one-machine-to-several.md")]
MOVE, TLS, REJOIN, JOIN, SHARE, HEAD1, HEAD2, BOTH = GUIDE[1:]
OWN_URL = "postgresql://gpusched:…@db.example/gpusched"


class Head(Stack):
    """One that is started by a line of the guide. `variables`: what its machine has set."""

    is_prepared = False

    def __init__(self) -> None:
        super().__init__(heartbeat_seconds=0.5)
        self.https_port, http_port = free_port(), free_port()
        self.secure_url = f"https://localhost:{self.https_port}"
        self.variables = {"GPUSCHED_TLS_HTTPS_PORT": str(self.https_port), "GPUSCHED_TLS_HTTP_PORT": str(http_port)}

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**super().environment(), **self.variables, "PATH": path, "HOME": str(self.directory)}

    def follow(self, script: str, **replaced: str) -> str:
        """Run a block in this machine's directory; fail with its output. Keep what it exports for the next ones."""
        for old, new in {**replaced, "/srv/gpusched": str(self.directory.parent / "srv")}.items():
            script = script.replace(old, new)
        result = subprocess.run(
            ["bash", "-euc", f"{script}\necho; echo ---; env"], cwd=self.directory, env=self.environment(),
            capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert result.returncode == 0, f"{script}\n{result.stdout}{result.stderr}"
        printed, _, variables = result.stdout.partition("\n---\n")
        pairs = [line.partition("=") for line in variables.splitlines() if line.startswith("GPUSCHED_")]
        self.variables |= {name: value for name, _, value in pairs}
        return printed

    def launch(self, script: str, name: str) -> None:
        """Do what a block exports, and start `up` with its arguments."""
        *before, start = script.strip().splitlines()
        self.follow("\n".join(before))
        words = start.replace(name, "localhost").split()
        assert words[:2] == ["gpusched-server", "up"]
        self.no_agent = ("--no-agent", *(word for word in words[2:] if word != "--no-agent"))
        self.start()
        wait_for((self.data_dir / "ca.crt").exists, 60, "the authority's certificate")

    def stop(self) -> None:
        assert self.up is not None
        self.up.send_signal(signal.SIGTERM)
        self.up.wait(60)


@pytest.fixture
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Head, Head, Server]]:
    """Two machines for heads with a directory that both mount, and a PostgreSQL."""
    place = tmp_path_factory.mktemp("machines")
    for part in (place, place.parent, place.parent.parent):
        with suppress(PermissionError):
            part.chmod(0o755)
    (place / "srv").mkdir()
    first, second, database = Head(), Head(), Server(place / "own" / "postgres")
    (place / "own").mkdir()
    for number, head in enumerate((first, second)):
        head.directory = head.directory.rename(place / f"head{number + 1}")
        head.data_dir = head.directory / "data"
    database.start()
    try:
        yield first, second, database
    finally:
        for head in (first, second):
            head.close()
        database.remove()


def trusting(head: Head, url: str, token: str) -> Client:
    return Client(url, token, tenant="default", ca_file=str(head.directory / "ca.crt"))


def start_agent(head: Head, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """`gpusched-agent run` on another machine that has joined."""
    return head.agent(*arguments, "--url", "", name=name, token="none", own_jobs=False)


def test_guide_leads_from_one_machine_to_two_heads(machines: tuple[Head, Head, Server]) -> None:
    first, second, database = machines
    first.password = prepared.copy_to(first.data_dir)
    first.start()
    token = first.token()
    east = first.agent("--name", "east", name="east", own_jobs=False)
    client = first.client()
    wait_for(lambda: client.status().online_nodes == 1, 60, "the node")
    old = client.wait(client.submit(["echo", "before"], gpus=0).id, timeout=60)
    (first.directory / "starts").touch()
    (first.directory / "starts").chmod(0o666)
    script = f"echo $$ >> {first.directory}/starts; while [ -e {first.directory}/starts ] && [ ! -e {first.directory}/go ]; do sleep 0.2; done; echo after"
    running = client.submit(["sh", "-c", script], gpus=0).id
    wait_for(lambda: (first.directory / "starts").read_text(), 60, "the job to run")

    # 1. A database of its own; everything that was acknowledged is in it.
    late = client.submit(["true"], gpus=0, not_before="2099-01-01T00:00:00Z").id
    first.stop()
    assert "restored 3 jobs" in first.follow(MOVE, **{OWN_URL: database.url()})

    # 2. HTTPS, and the node joins again while its job runs.
    first.launch(TLS, "gpu.example.org")
    (first.directory / "ca.crt").write_bytes((first.data_dir / "ca.crt").read_bytes())
    client = trusting(first, first.secure_url, token)
    assert (client.get(old.id).state, client.get(late).state) == ("completed", "pending")
    joining = {"https://gpu.example.org TOKEN": f"{first.secure_url} {client.join_token().token} --name east"}
    first.follow(f"export GPUSCHED_AGENT_DIR={first.directory}/east\n{REJOIN}", **joining)
    east.kill()
    east.wait(20)
    first.agents.remove(east)
    start_agent(first, "east")
    wait_for(lambda: client.node("east").state == "online", 60, "the node with its new address")
    assert client.get(running).state == "running"

    # 3. One more node.
    joining = {"https://gpu.example.org TOKEN": f"{first.secure_url} {client.join_token().token} --name west"}
    script = f"export GPUSCHED_AGENT_DIR={first.directory}/west\n{JOIN.splitlines()[0]}"
    assert JOIN.splitlines()[1:] == ["gpusched-agent doctor", "gpusched-agent run"]
    first.follow(script, **joining)
    start_agent(first, "west")
    wait_for(lambda: client.status().online_nodes == 2, 60, "both nodes")

    # 4. Two heads.
    first.stop()
    first.follow(SHARE)
    (second.directory / "secret_key").write_bytes((first.directory / "secret_key").read_bytes())
    second.variables["GPUSCHED_DATABASE_URL"] = first.variables["GPUSCHED_DATABASE_URL"]
    first.launch(HEAD1, "head1.example")
    second.launch(HEAD2, "head2.example")
    for number, head in enumerate((first, second)):
        (first.directory / f"head{number + 1}.crt").write_bytes((head.data_dir / "ca.crt").read_bytes())
    assert "east" in join_both(first, second, client.join_token().token)
    client = trusting(first, f"{first.secure_url},{second.secure_url}", token)
    for agent in list(first.agents):
        agent.kill()
        agent.wait(20)
        first.agents.remove(agent)
    for name in ("east", "west"):
        start_agent(first, name)
    wait_for(lambda: client.status().online_nodes == 2, 60, "both nodes")
    assert client.logs(old.id).text == "before\n"
    first.stop()
    (first.directory / "go").touch()
    assert client.wait(running, timeout=60).state == "completed"
    wait_for(lambda: client.logs(running).text == "after\n", 60, "the log by the second head")
    assert len((first.directory / "starts").read_text().split()) == 1, "the job started once"
    assert client.get(running).attempt == 1


def join_both(first: Head, second: Head, token: str) -> str:
    """Follow the last block for both nodes; return what it printed."""
    addresses = {"https://head1.example": first.secure_url, "https://head2.example": second.secure_url}
    (first.directory / "password.txt").write_text(f"{first.password}\n")
    printed = ""
    for name in ("west", "east"):
        script = f"export GPUSCHED_AGENT_DIR={first.directory}/{name}\n{BOTH}".replace(
            "TOKEN", f"{token} --name {name}"
        )
        printed = first.follow(script, **addresses)
    return printed
