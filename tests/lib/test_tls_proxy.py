"""Caddy's configuration for each kind of name; tests/e2e/test_tls.py runs it for a private one."""

import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from django.http.request import validate_host
from django.urls import URLPattern

from gpusched.env import Env, SettingError
from gpusched.lib.process.tls_proxy import TlsProxy, program, require_files
from gpusched.urls import urlpatterns
from scheduling.status.metrics import metrics
from tests.tls_server import Authority


@pytest.mark.parametrize("agent_ca", ["", "agents.pem"])
@pytest.mark.parametrize("https_port", [443, 8443])
@pytest.mark.parametrize(
    ("name", "issuer", "is_internal"),
    [
        ("gpu.example.org", "auto", False),
        ("gpu.example.org", "internal", True),
        ("head", "auto", True),
        ("gpu.internal", "auto", True),
        ("gpu.internal", "acme", False),
        ("10.0.0.7", "auto", True),
        ("fd00::7", "auto", True),
    ],
)
def test_caddy_accepts_the_configuration(
    tmp_path: Path, name: str, issuer: str, is_internal: bool, https_port: int, agent_ca: str
) -> None:
    proxies = "10.0.0.5,2001:db8::/32" if agent_ca else ""
    env = Env(tls_issuer=issuer, tls_https_port=https_port, tls_agent_ca=agent_ca, trusted_proxies=proxies)
    proxy = TlsProxy(name, env, tmp_path / "caddy", "127.0.0.1:8000")
    proxy.write()
    command = [program(), "adapt", "--config", "Caddyfile", "--adapter", "caddyfile"]
    done = subprocess.run(command, cwd=proxy.directory, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    policies = json.loads(text)["apps"].get("tls", {}).get("automation", {}).get("policies", [])
    issuers = [issuer["module"] for policy in policies for issuer in policy.get("issuers", ())]
    assert issuers == (["internal"] if is_internal else [])
    assert ("verify_if_given" in text) == bool(agent_ca)
    assert name in text and (f":{https_port}" in text)


@pytest.mark.parametrize(
    ("name", "port", "url", "host"),
    [
        ("gpu.example.org", 443, "https://gpu.example.org", "gpu.example.org"),
        ("10.0.0.7", 8443, "https://10.0.0.7:8443", "10.0.0.7"),
        ("fd00::7", 443, "https://[fd00::7]", "[fd00::7]"),
        ("fd00::7", 8443, "https://[fd00::7]:8443", "[fd00::7]"),
    ],
)
def test_server_takes_requests_to_its_public_address(tmp_path: Path, name: str, port: int, url: str, host: str) -> None:
    """Otherwise it refuses each request and each login, and the address that `up` prints is none."""
    proxy = TlsProxy(name, Env(tls_https_port=port), tmp_path, "127.0.0.1:8000")
    assert proxy.url == url and httpx.URL(url).port == (None if port == 443 else port)
    assert validate_host(httpx.Request("GET", url).headers["Host"].removesuffix(f":{port}"), [host])
    allowed, trusted = (
        proxy.settings()[f"GPUSCHED_{each}"].split(",") for each in ("ALLOWED_HOSTS", "TRUSTED_ORIGINS")
    )
    assert host in allowed and trusted == [url]


def test_every_address_of_the_metrics_is_for_private_addresses_only(tmp_path: Path) -> None:
    addresses = [
        f"/{each.pattern}" for each in urlpatterns if isinstance(each, URLPattern) and each.callback is metrics
    ]
    assert "/metrics" in addresses
    caddyfile = TlsProxy("gpu.example.org", Env(), tmp_path, "127.0.0.1:8000").caddyfile()
    [restricted] = re.findall(r"@metrics \{\s+path (.*)\n\s+not client_ip private_ranges", caddyfile)
    assert sorted(restricted.split()) == sorted(addresses)


@pytest.mark.parametrize(
    ("upstream", "present", "trusted"),
    [
        ("127.0.0.1:8000", "", "127.0.0.1,::1"),
        ("[::1]:8000", "10.0.0.9", "10.0.0.9,127.0.0.1,::1"),
        ("10.0.0.7:8000", "", "127.0.0.1,::1,10.0.0.7"),
        ("localhost:8000", "::1", "::1,127.0.0.1"),
    ],
)
def test_server_trusts_caddy_at_the_address_that_it_connects_from(
    tmp_path: Path, upstream: str, present: str, trusted: str
) -> None:
    """Otherwise all clients have the address of Caddy, and share one limit of logins."""
    proxy = TlsProxy("gpu.example.org", Env(trusted_proxies=present), tmp_path, upstream)
    assert proxy.settings()["GPUSCHED_TRUSTED_PROXIES"] == trusted


def test_caddy_passes_on_the_clients_of_trusted_proxies_in_front_of_it(tmp_path: Path) -> None:
    """Otherwise all of them have the address of that proxy, and share one limit of logins."""
    env = Env(trusted_proxies="10.0.0.5, 2001:db8::/32")
    site, inner = (TlsProxy("head", each, tmp_path, "127.0.0.1:8000").caddyfile() for each in (env, Env()))
    assert "trusted_proxies static 10.0.0.5/32 2001:db8::/32\n\t\ttrusted_proxies_strict\n" in site
    assert "trusted_proxies" not in inner


def test_authority_is_there_once_its_certificate_is_whole(tmp_path: Path) -> None:
    """Otherwise `up` would publish an empty file."""
    proxy = TlsProxy("gpu.lan", Env(), tmp_path, "127.0.0.1:8000")
    proxy.ca_file.parent.mkdir(parents=True)
    answers = [proxy.has_authority()]
    for text in (
        "",
        "-----BEGIN CERTIFICATE-----\nMIIB",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ):
        proxy.ca_file.write_text(text)
        answers.append(proxy.has_authority())
    assert answers == [False, False, False, True]


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "does not exist"), (b"", "has no certificates"), (b"x", "has no certificates")]
)
def test_file_without_certificates_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """Caddy ends again and again without the file, and refuses every agent with an empty one."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingError, match=f"GPUSCHED_TLS_AGENT_CA: {file} {problem}"):
        require_files(Env(tls_agent_ca=str(file)))
    with pytest.raises(SettingError, match=f"GPUSCHED_TLS_ACME_CA: {file} {problem}"):
        require_files(Env(tls_acme_ca=str(file)))
    with pytest.raises(SettingError, match=f"GPUSCHED_TLS_AGENT_CA: {tmp_path} is a directory"):
        require_files(Env(tls_agent_ca=str(tmp_path)))


def test_file_with_several_authorities_is_accepted(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    first.file.write_bytes(first.file.read_bytes() + second.file.read_bytes())
    require_files(Env(tls_agent_ca=str(first.file)))
