"""A client over TLS: it trusts the authorities of the machine or those of a file, and else sends nothing (A84)."""

import asyncio
import os
import pwd
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gpusched import tls
from gpusched.client import AsyncClient, Client
from gpusched.client.errors import GpuschedError, Invalid, Unreachable, from_answer
from gpusched.client.streams import open_stream
from gpusched.client.transport.wire import lost
from tests.client.commandline import call
from tests.tls_server import Authority, RecordingServer

TOKEN = "gps_very_secret"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Iterator[RecordingServer]:
    with RecordingServer(authority.issue("localhost")) as running:
        yield running


def test_client_sends_nothing_to_a_server_that_it_does_not_trust(server: RecordingServer) -> None:
    """A84: at once, without retries, and the error says what to do."""
    with Client(server.url, TOKEN) as client, pytest.raises(Unreachable, match="certificate is not trusted") as caught:
        client.submit(["train", "with", TOKEN], gpus=0)
    assert "--ca-file or GPUSCHED_CA_FILE" in caught.value.next_step
    assert (server.received, server.handshakes) == (b"", 1)


def test_client_trusts_the_authority_in_its_file_only(
    server: RecordingServer, authority: Authority, tmp_path: Path
) -> None:
    """The recorder sees a token that is sent; a file with another authority is as good as none."""
    other = Authority(tmp_path, "another authority")
    with Client(server.url, TOKEN, ca_file=str(other.file)) as client, pytest.raises(Unreachable):
        client.health()
    assert server.received == b""
    with Client(server.url, TOKEN, ca_file=str(authority.file)) as client, pytest.raises(GpuschedError):
        client.health()  # the recorder's answer is not a server's
    assert TOKEN.encode() in server.received


def test_stream_sends_nothing_to_a_server_that_it_does_not_trust(server: RecordingServer, authority: Authority) -> None:
    """A84"""

    async def open_one(ca_file: str | None) -> str:
        async with AsyncClient(server.url, TOKEN, ca_file=ca_file) as client:
            with pytest.raises(Unreachable) as caught:
                await open_stream(client, 42, port=8888)
        return str(caught.value)

    assert "certificate is not trusted" in asyncio.run(open_one(None))
    assert server.received == b""
    assert "not trusted" not in asyncio.run(open_one(str(authority.file)))
    assert TOKEN.encode() in server.received


def test_unusable_ca_file_is_named(server: RecordingServer, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name, words in (("none.pem", "does not exist"), ("empty.pem", "has no certificates")):
        with pytest.raises(Invalid, match=f"GPUSCHED_CA_FILE: .*{name} {words}"):
            Client(server.url, TOKEN, ca_file=str(tmp_path / name))


def test_ca_file_in_a_directory_of_another_user_is_named(tmp_path: Path) -> None:
    """Root's home, for the agent of the unit: the error once advised to check the free space."""
    directory = tmp_path / "private"
    directory.mkdir(mode=0o700 if os.geteuid() == 0 else 0)
    user = os.geteuid()
    os.seteuid(user or pwd.getpwnam("nobody").pw_uid)
    try:
        with pytest.raises(tls.TlsFileError, match=r"private/ca.crt cannot be read: this user cannot enter"):
            tls.context(str(directory / "ca.crt"))
    finally:
        os.seteuid(user)
        directory.chmod(0o700)


def test_command_explains_an_untrusted_certificate(
    server: RecordingServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A84: without and with the file, by flag and by variable."""
    result = call(server.url, "ps")
    assert result.exit_code != 0 and "certificate is not trusted" in result.stderr and "--ca-file" in result.stderr
    assert server.received == b""
    assert "not trusted" not in call(server.url, "--ca-file", str(authority.file), "ps").stderr
    assert server.received
    server.received = b""
    monkeypatch.setenv("GPUSCHED_CA_FILE", str(authority.file))
    call(server.url, "ps")
    assert server.received


def no_answer(url: str, timeout: float = 5) -> str:
    with pytest.raises(httpx.TransportError) as caught:
        httpx.get(url, timeout=timeout)
    return lost(caught.value, url).sentence


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_address_of_a_server_without_tls_is_named(answer: bytes) -> None:
    """Such as https://head:8000: it answers in plain HTTP, or waits for more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):  # it hangs up
                client.recv(4096)
                if answer:
                    client.sendall(answer)
                client.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        sentence = no_answer(f"https://127.0.0.1:{listener.getsockname()[1]}", 0.3)
        thread.join()
    assert sentence.endswith("(no TLS is spoken there; perhaps its address begins with http://)")


@pytest.mark.parametrize("alert", [ssl.ALERT_DESCRIPTION_INTERNAL_ERROR, ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME])
def test_name_without_a_certificate_is_named(server: RecordingServer, alert: ssl.AlertDescription) -> None:
    """Caddy sends the first: an address is used where `up --tls` had a name, or one name for another."""
    server.refuse_names(alert)
    assert "it has no certificate for this name" in no_answer(server.url.replace("127.0.0.1", "localhost"))


@pytest.mark.parametrize(
    "body", ["Client sent an HTTP request to an HTTPS server.", "The plain HTTP request was sent to HTTPS port"]
)
def test_plain_request_to_a_port_of_tls_is_named(body: str) -> None:
    """As Caddy and nginx answer."""
    assert from_answer(400, body.encode(), "GET /api/v1/me").next_step == "use https:// in the URL"
