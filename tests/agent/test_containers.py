"""A hanging runtime must not delay a caller that has other containers to check."""

import time

import pytest

from gpusched.agent.containers import client


def test_removal_that_is_retried_later_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SHORT_SECONDS", 0.1)
    spec = {"container": {"name": "x", "command": ["sh", "-c", "sleep 30"]}, "environment": {"PATH": "/usr/bin:/bin"}}
    began = time.monotonic()
    assert not client.remove(spec, 0)
    assert time.monotonic() - began < 2
