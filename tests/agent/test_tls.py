"""An agent over TLS: to a server that it does not trust it sends neither its join token nor its credential (A84)."""

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from gpusched import tls
from gpusched.agent import identity as identities
from gpusched.agent.config import Config
from gpusched.agent.daemon import directory_of
from gpusched.agent.gpus.nvml import Nvml
from gpusched.agent.host import doctor
from gpusched.agent.http_client import HttpClient
from gpusched.agent.identity import Identity
from tests.agent.conftest import ROOT
from tests.tls_server import Authority, RecordingServer
from tests.waiting import wait_for

JOIN_TOKEN, CREDENTIAL = "join-secret", "node-secret"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Iterator[RecordingServer]:
    with RecordingServer(authority.issue("localhost")) as running:
        yield running


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUSCHED_")}
    return {**inherited, "GPUSCHED_AGENT_ALLOW_ROOT": "true", **more}


def join(url: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "gpusched.agent.main",
        "join",
        "--data-dir",
        str(directory),
        *options,
        url,
        JOIN_TOKEN,
    ]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)


@contextmanager
def running(directory: Path, log: Path, **variables: str) -> Iterator[None]:
    command = [sys.executable, "-m", "gpusched.agent.main", "run", "--data-dir", str(directory), "--name", "n1"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(**variables), stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def test_join_sends_no_token_to_a_server_that_it_does_not_trust(
    server: RecordingServer, authority: Authority, tmp_path: Path
) -> None:
    """A84: the error names the remedy; with the authority's file the token is sent."""
    result = join(server.url, tmp_path)
    assert result.returncode == 1 and "certificate is not trusted" in result.stderr and "--ca-file" in result.stderr
    assert server.received == b""
    assert "not trusted" not in join(server.url, tmp_path, "--ca-file", str(authority.file)).stderr
    assert JOIN_TOKEN.encode() in server.received


def test_join_sends_no_token_to_an_address_in_capitals(server: RecordingServer, tmp_path: Path) -> None:
    result = join(server.url.replace("https", "HTTPS"), tmp_path)
    assert result.returncode == 1 and "certificate is not trusted" in result.stderr
    assert server.received == b""


@pytest.mark.parametrize("before", ["HTTPS://", "http://127.0.0.1:9,https://"])
def test_agent_sends_no_output_to_a_server_that_it_does_not_trust(
    server: RecordingServer, authority: Authority, tmp_path: Path, before: str
) -> None:
    """Whatever its address looks like, also beside one of http."""
    url = server.url.replace("https://", before)

    async def send() -> None:
        async with HttpClient(url, "", "") as http:
            await http.post(f"{server.url}/agent/logs", headers={"Authorization": f"Bearer {CREDENTIAL}"})

    with pytest.raises(httpx.ConnectError, match="certificate"):
        asyncio.run(send())
    assert server.received == b""


def test_agent_sends_no_credential_to_a_server_that_it_does_not_trust(
    server: RecordingServer, authority: Authority, tmp_path: Path
) -> None:
    """A84: a node that has joined, and whose server has another certificate now."""
    directory, log = directory_of(tmp_path, "n1"), tmp_path / "agent.log"
    identities.save(directory, Identity("n1", "key", url=server.url, node_id=1, credential=CREDENTIAL))
    with running(tmp_path, log):
        wait_for(lambda: "certificate is not trusted" in log.read_text(), 30, "the agent to refuse the server")
    assert server.received == b""
    with running(tmp_path, log, GPUSCHED_CA_FILE=str(authority.file)):
        wait_for(lambda: CREDENTIAL.encode() in server.received, 30, "the agent to trust the server")


def test_missing_ca_file_stops_the_start(server: RecordingServer, tmp_path: Path) -> None:
    result = join(server.url, tmp_path, "--ca-file", str(tmp_path / "none.pem"))
    assert result.returncode == 1 and "none.pem does not exist" in result.stderr and "Traceback" not in result.stderr
    assert server.handshakes == 0


def test_refused_certificate_is_named(authority: Authority, tmp_path: Path) -> None:
    """Expired, or of another authority. The address is right, and no firewall is in the way."""
    refused, directory, log = Authority(tmp_path, "other").issue("n1"), directory_of(tmp_path, "n1"), tmp_path / "log"
    refusal = "it refuses the certificate of this machine: unknown ca"
    with RecordingServer(authority.issue("localhost"), clients=authority.file) as server:
        result = join(server.url, tmp_path, "--ca-file", str(authority.file), "--certificate-file", str(refused))
        assert result.returncode == 1 and refusal in result.stderr
        identity = Identity("n1", "key", url=server.url, node_id=1, credential=CREDENTIAL)
        identities.save(directory, identities.with_tls(identity, str(authority.file), str(refused)))
        [finding] = [finding for finding in doctor.examine(directory) if finding.check == "server"]
        assert (finding.says, finding.next_step) == (f"{server.url}: {refusal}", tls.RENEW)
        with running(tmp_path, log):
            wait_for(lambda: "trying again" in log.read_text(), 30, "the agent to be refused")
    assert refusal in log.read_text() or "gpusched-agent doctor may know why" in log.read_text()


@pytest.mark.parametrize(
    ("begin", "end", "level"),
    [
        (-30, 60, "ok"),
        (-92, 8, "warn"),
        (-92, -1, "fail"),
        (1, 90, "fail"),
        (-1, 50_000, "ok"),
    ],  # years to 2049: UTCTime
)
def test_doctor_names_the_end_of_the_nodes_certificate(
    authority: Authority, tmp_path: Path, begin: int, end: int, level: str
) -> None:
    """An open connection outlives the certificate; at the next one the server refuses the node, perhaps weeks later."""
    file = authority.issue("n1", begin=timedelta(days=begin), end=timedelta(days=end))
    directory = directory_of(tmp_path, "n1")
    identity = Identity("n1", "key", url="https://127.0.0.1:1", node_id=1, credential=CREDENTIAL)
    identities.save(directory, identities.with_tls(identity, str(authority.file), str(file)))
    [finding] = [finding for finding in doctor.examine(directory) if finding.check == "certificate"]
    expires = f"until {datetime.now(UTC) + timedelta(days=end):%Y-%m-%d}"
    assert (finding.level, expires in finding.says) == (level, True), finding
    shown = [hint for hint in doctor.hints(Config(), Nvml(), 0, {}, directory) if hint.check == "certificate"]
    assert [hint.level for hint in shown] == ([] if level == "ok" else [level])


@pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_file_that_is_no_certificate_is_a_finding(tmp_path: Path, content: str) -> None:
    directory, file = directory_of(tmp_path, "n1"), tmp_path / "n1.pem"
    file.write_text(content)
    identities.save(directory, identities.with_tls(Identity("n1", "key", node_id=1), "", str(file)))
    [hint] = [hint for hint in doctor.hints(Config(), Nvml(), 0, {}, directory) if hint.check == "certificate"]
    assert hint.level == "fail" and str(file) in hint.says and hint.next_step == tls.RENEW


async def test_refusal_after_the_handshake_is_an_error_of_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a question to another head, which catches those, ends the connection to the one that works."""

    async def refuse(*_: object, **__: object) -> None:
        raise ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")

    monkeypatch.setattr(httpx.AsyncClient, "send", refuse)
    async with HttpClient("https://head:1", "", "") as http:
        with pytest.raises(httpx.ReadError, match="certificate required"):
            await http.get("https://head:1/ready")


async def test_logs_continue_once_expired_certificates_are_replaced(authority: Authority, tmp_path: Path) -> None:
    """Their connections end after seconds, and the agent runs for months. A file that is being written changes nothing."""
    former = Authority(tmp_path, "former authority")
    ca_file, certificate_file = tmp_path / "ca.crt", tmp_path / "node.crt"
    ca_file.write_bytes(former.file.read_bytes())
    certificate_file.write_bytes(former.issue("n1").read_bytes())
    with RecordingServer(authority.issue("localhost"), clients=authority.file) as server:
        async with HttpClient(server.url, str(ca_file), str(certificate_file)) as http:

            async def is_refused() -> bool:
                with contextlib.suppress(httpx.TransportError, ssl.SSLError):
                    return (await http.post(f"{server.url}/agent/logs")).status_code != 200
                return True

            assert await is_refused()
            ca_file.write_bytes(authority.file.read_bytes())
            assert await is_refused() and await is_refused()  # it trusts the server now
            certificate = authority.issue("n1").read_bytes()
            certificate_file.write_bytes(certificate[:100])
            assert await is_refused() and await is_refused()
            certificate_file.write_bytes(certificate)
            assert await is_refused()
            assert not await is_refused()
