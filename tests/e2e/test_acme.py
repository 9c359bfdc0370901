"""HTTPS with a certificate of an ACME server: Pebble, the one that the authors of Let's Encrypt test clients with."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.stack import Stack, free_port
from tests.tls_server import Authority
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
NAME = "gpu.example.org"
needs_pebble = pytest.mark.skipif(shutil.which("pebble") is None, reason="pebble is not installed")


@dataclass(frozen=True)
class AcmeServer:
    """`ca_file`: the authority of its own certificate. `validates_at`: the port at which it expects its challenges."""

    directory_url: str
    management_url: str
    ca_file: Path
    validates_at: int

    def root(self) -> str:
        """Return the certificate from which all certificates that it issues are."""
        trusting = ssl.create_default_context(cafile=self.ca_file)
        with urllib.request.urlopen(f"{self.management_url}/roots/0", context=trusting, timeout=10) as answer:  # noqa: S310
            return str(answer.read().decode())


@contextmanager
def acme_server(directory: Path) -> Iterator[AcmeServer]:
    """Run Pebble with a name server that resolves every name to this machine."""
    authority = Authority(directory)
    certificate = str(authority.issue("localhost"))
    listen, manage, validates_at, names, names_api = (free_port() for _ in range(5))
    settings = {
        "listenAddress": f"127.0.0.1:{listen}", "managementListenAddress": f"127.0.0.1:{manage}",
        "certificate": certificate, "privateKey": certificate, "httpPort": validates_at, "tlsPort": free_port(),
    }  # fmt: skip
    (directory / "pebble.json").write_text(json.dumps({"pebble": settings}))
    resolver = [
        "pebble-challtestsrv", "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dns01", f"127.0.0.1:{names}",
        "-management", f"127.0.0.1:{names_api}", "-http01", "", "-https01", "", "-tlsalpn01", "",
    ]  # fmt: skip
    pebble = ["pebble", "-config", str(directory / "pebble.json"), "-dnsserver", f"127.0.0.1:{names}"]
    environment = {**os.environ, "PEBBLE_VA_NOSLEEP": "1"}
    with (directory / "pebble.log").open("wb") as log:
        processes = [
            subprocess.Popen(command, env=environment, stdout=log, stderr=log) for command in (resolver, pebble)
        ]
    try:
        wait_for(lambda: answers(manage) and answers(names_api), 30, f"the ACME server; see {directory / 'pebble.log'}")
        host = "https://localhost"
        yield AcmeServer(f"{host}:{listen}/dir", f"{host}:{manage}", authority.file, validates_at)
    finally:
        for process in processes:
            process.terminate()
            process.wait(10)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Public(Stack):
    """`up --tls` with a public name, and an ACME server of its own."""

    def __init__(self, acme: AcmeServer) -> None:
        self.https_port = free_port()
        super().__init__(
            tls_https_port=self.https_port, tls_http_port=acme.validates_at, tls_acme_directory=acme.directory_url,
            tls_acme_ca=acme.ca_file,
        )  # fmt: skip
        self.no_agent = ("--no-agent", "--tls", NAME)

    def health(self, trusting: ssl.SSLContext) -> bytes:
        """Return the answer to a request at the public name; nothing while Caddy has no certificate that is trusted."""
        try:
            plain = socket.create_connection(("127.0.0.1", self.https_port), timeout=10)
            with plain, trusting.wrap_socket(plain, server_hostname=NAME) as secure:
                secure.sendall(f"GET /health HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
                return b"".join(iter(lambda: secure.recv(65536), b""))
        except (ConnectionError, ssl.SSLError):
            return b""


@needs_pebble
def test_server_gets_its_certificate_from_the_acme_server(tmp_path: Path) -> None:
    """A84"""
    with acme_server(tmp_path) as acme, Public(acme) as server:
        trusting = ssl.create_default_context(cadata=acme.root())
        wait_for(lambda: server.health(trusting), 60, "a certificate of the ACME server")
        assert server.health(trusting).startswith(b"HTTP/1.1 200 ")
        assert not (server.data_dir / "ca.crt").exists()
