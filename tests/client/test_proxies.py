"""Proxies of the environment: none leads back to this machine, and one that cannot be used is named."""

import socket
from collections.abc import Iterator

import pytest

from gpusched.client import AsyncClient, Client
from gpusched.client.errors import GpuschedError, Invalid, Unreachable
from gpusched.client.streams import open_stream
from tests.client.commandline import call
from tests.client.fakeserver import FakeServer
from tests.client.recorder import Recorder

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ws_proxy", "socks_proxy")


@pytest.fixture(autouse=True)
def _none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def proxy() -> Iterator[socket.socket]:
    """A proxy that never responds; `accept` raises BlockingIOError if nobody connected."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


async def test_token_for_this_machine_goes_to_no_proxy(
    full: FakeServer, proxy: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
    assert Client(full.url, "secret").me()
    async with AsyncClient(full.url, "secret") as client:
        assert await client.me()
        with pytest.raises(GpuschedError):  # this server knows no streams
            await open_stream(client, 42, port=8888)
    with pytest.raises(BlockingIOError):
        proxy.accept()


def test_proxy_that_opens_no_connection_is_named_and_leaves_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has sent the server nothing, so that nothing is carried out."""
    with Recorder(407, None) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        with Client("https://head.invalid", patience_seconds=0) as client, pytest.raises(Unreachable) as caught:
            client.submit(["true"])
    assert str(caught.value) == "cannot reach https://head.invalid through the proxy of the environment (407 X)"
    assert b"CONNECT head.invalid:443" in proxy.received


BAD_HOSTS = ["http://[::1", "http://proxy..example.com:3128", "http://proxy:99999"]


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("HTTP_PROXY", url) for url in BAD_HOSTS), ("NO_PROXY", "localhost,[::1]"), ("NO_PROXY", "[::1]:8000")],
)
def test_wrong_proxy_variable_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    result = call("http://head.invalid:1", "nodes")
    assert result.exit_code == Invalid.exit_code
    assert f"{name} cannot be used: " in result.stderr
    assert "next:  unset the variable" in result.stderr
    monkeypatch.setenv("NO_PROXY", "*")  # the advice
    assert "cannot reach http://head.invalid:1" in call("http://head.invalid:1", "nodes").stderr


async def test_wrong_proxy_variable_does_not_matter_on_this_machine(
    full: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", BAD_HOSTS[0])
    assert Client(full.url, "secret").me()


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1080", "socks://127.0.0.1:1080"])
def test_proxy_that_cannot_be_used_is_an_error_with_a_next_step(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Desktops set ALL_PROXY. It was a traceback."""
    monkeypatch.setenv("ALL_PROXY", url)
    result = call("http://head:8000", "nodes")
    assert result.exit_code == Invalid.exit_code
    assert "error: the proxy in ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: " in result.stderr
    assert "next:  unset the variable" in result.stderr
