"""HTTPS by one flag (A84): docs/how-to/tls.md as it is written, with an internal authority and certificates for agents."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from gpusched import tls
from gpusched.client import Client
from gpusched.client.errors import Unreachable
from gpusched.lib.process.tls_proxy import program
from tests.docs.blocks import blocks
from tests.system.stack import ROOT, Stack, free_port
from tests.tls_server import Authority
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
NAME = "localhost"
GUIDE = [block.text for block in blocks(ROOT / "docs/how-to/tls.md")]
JOINED = "joined https://"


class WithTls(Stack):
    """`up --tls localhost`, as the first command of the guide."""

    def __init__(self, agent_ca: Path) -> None:
        self.https_port, self.http_port = free_port(), free_port()
        self.secure_url = f"https://{NAME}:{self.https_port}"
        super().__init__(
            tls_https_port=self.https_port, tls_http_port=self.http_port, tls_agent_ca=agent_ca, mcp="false"
        )
        start = GUIDE[0].replace("gpu.example.org", NAME).split()
        assert start[:2] == ["gpusched-server", "up"]
        self.no_agent = ("--no-agent", *start[2:])

    @property
    def ca_file(self) -> Path:
        return self.data_dir / "ca.crt"

    def trusted(self) -> Client:
        return Client(self.secure_url, self.token(), tenant="default", ca_file=str(self.ca_file))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the agents' certificates."""
    return Authority(tmp_path_factory.mktemp("agents"), "agents")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[WithTls]:
    with WithTls(authority.file) as running:
        wait_for(running.ca_file.exists, 60, "the authority's certificate")
        yield running


def test_http_redirects_and_https_has_secure_cookies_and_hsts(server: WithTls) -> None:
    redirect = httpx.get(f"http://{NAME}:{server.http_port}/login/?next=/jobs/")
    assert (redirect.status_code, redirect.headers["location"]) == (308, f"{server.secure_url}/login/?next=/jobs/")
    with httpx.Client(verify=tls.context(str(server.ca_file)), base_url=server.secure_url) as http:
        page = http.get("/login/")
        assert page.status_code == 200 and "Secure" in page.headers["set-cookie"]
        assert int(page.headers["strict-transport-security"].split("=")[1]) >= 31_536_000
        form = {"username": "admin", "password": server.password, "csrfmiddlewaretoken": http.cookies["csrftoken"]}
        logged_in = http.post("/login/", data=form, headers={"Referer": f"{server.secure_url}/login/"})
        assert logged_in.status_code == 302 and http.cookies["sessionid"]


def test_client_without_the_authority_is_refused_by_itself(server: WithTls) -> None:
    """A84: against the real server; what is sent is recorded in tests/client/test_tls.py."""
    with Client(server.secure_url, server.token()) as client, pytest.raises(Unreachable, match="is not trusted"):
        client.me()
    with server.trusted() as client:
        assert client.me().user == "admin"


def until(page: ClientConnection, words: str) -> None:
    while words not in str(page.recv(30)):
        pass


def test_websocket_survives_a_reload(server: WithTls) -> None:
    """An open page stays connected while Caddy loads its configuration again."""
    with httpx.Client(verify=tls.context(str(server.ca_file)), base_url=server.secure_url) as http:
        http.get("/login/")
        form = {"username": "admin", "password": server.password, "csrfmiddlewaretoken": http.cookies["csrftoken"]}
        http.post("/login/", data=form, headers={"Referer": f"{server.secure_url}/login/"})
        cookie = f"sessionid={http.cookies['sessionid']}"
    headers = {"Cookie": cookie, "Origin": server.secure_url}
    url = server.secure_url.replace("https", "wss") + "/ws/live/"
    with connect(url, ssl=tls.context(str(server.ca_file)), additional_headers=headers) as page:
        page.send('{"subscribe": ["queue"]}')
        until(page, '"snapshot"')
        (server.data_dir / "caddy" / "Caddyfile").open("a").write("# changed\n")
        command = [program(), "reload", "--config", "Caddyfile", "--address", "unix/admin.sock", "--force"]
        subprocess.run(command, cwd=server.data_dir / "caddy", check=True, capture_output=True, timeout=60)
        page.send('{"subscribe": ["jobs"]}')
        until(page, '"jobs"')


def test_guide_leads_to_a_job_over_tls_with_a_certificate_for_the_agent(
    server: WithTls, authority: Authority, tmp_path: Path
) -> None:
    """A84: the commands of the guide. Without its certificate the agent is refused before its join token counts."""
    (tmp_path / "ca.crt").write_bytes(server.ca_file.read_bytes())
    (tmp_path / "password.txt").write_text(f"{server.password}\n")
    environment = {
        "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LANG": "C.UTF-8",
        "GPUSCHED_AGENT_DIR": str(tmp_path / "agent"), "GPUSCHED_AGENT_ALLOW_ROOT": "true",
    }  # fmt: skip
    script = GUIDE[1].replace("https://gpu.example.org", server.secure_url)

    def follow(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", script], cwd=tmp_path, env={**environment, **variables}, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip

    refused = follow()
    assert refused.returncode == 1 and "--certificate-file" in refused.stderr, refused.stdout + refused.stderr
    certificate = authority.issue("node-1")
    result = follow(GPUSCHED_CERTIFICATE_FILE=str(certificate))
    assert result.returncode == 0, result.stdout + result.stderr
    assert JOINED in result.stdout and '"status"' in result.stdout
    with agent(environment, tmp_path / "agent.log"), server.trusted() as client:
        assert client.join_token().command.startswith(f"gpusched-agent join --ca-file ca.crt {server.secure_url} ")
        job = client.submit(["echo", "over TLS"], gpus=0)
        assert client.wait(job.id, timeout=60).state == "completed"
        wait_for(lambda: client.logs(job.id).text == "over TLS\n", 30, "the log of the job")


@contextmanager
def agent(environment: dict[str, str], log: Path) -> Iterator[None]:
    """Run the agent that has joined: it finds both files by itself."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpusched.agent.main", "run"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
