"""The whole system as real processes. A start costs seconds of processor time, so tests that need no settings of their
own share a system: each process of pytest starts it once. Such a test leaves no job running and no part stopped."""

from collections.abc import Iterator

import pytest

from tests.system.stack import Stack
from tests.waiting import wait_for


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[Stack]:
    with Stack() as running:
        running.fleet(2)
        yield running


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Stack]:
    with Stack() as running:
        yield running


@pytest.fixture
def stack(shared_stack: Stack) -> Stack:
    """A control plane with two pretend nodes of eight GPUs."""
    wait_for(shared_stack.is_ready, 60, "the control plane to be ready")
    return shared_stack


@pytest.fixture
def up(shared_server: Stack) -> Stack:
    """A control plane without nodes."""
    wait_for(shared_server.is_ready, 60, "the control plane to be ready")
    return shared_server
