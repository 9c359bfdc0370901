"""Proxies of the environment, and the server on this machine."""

import httpx
import pytest

from gpusched.lib.web.local_address import without_proxy


@pytest.mark.parametrize("present", ["", "localhost,[fd00::9], ::1", "*"])
@pytest.mark.parametrize(("http_host", "host"), [("fd00::5", "fd00::5"), ("::", "127.0.0.1"), ("10.0.0.7", "10.0.0.7")])
def test_clients_of_the_parts_accept_the_exceptions(
    present: str, http_host: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx refuses an address of IPv6 in brackets."""
    monkeypatch.setenv("no_proxy", present)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    exceptions = without_proxy(http_host)
    assert host in exceptions.split(",")
    monkeypatch.setenv("no_proxy", exceptions)
    httpx.Client().close()
