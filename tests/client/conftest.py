"""Fixtures of the client's tests: a fake server, and an environment without any other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.answers import answer_all
from tests.client.fakeserver import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def full(server: FakeServer) -> FakeServer:
    """Answers every command of the table."""
    answer_all(server)
    return server


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "TOKEN", "TOKEN_FILE", "TENANT"):
        monkeypatch.delenv(f"GPUSCHED_{name}", raising=False)
    monkeypatch.setenv("GPUSCHED_CONFIG", str(tmp_path / "config.toml"))
