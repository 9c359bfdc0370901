"""The whole system as real processes."""

from collections.abc import Iterator

import pytest

from tests.system.stack import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A control plane with two pretend nodes of eight GPUs, shared by the tests of a module."""
    with Stack() as running:
        running.fleet(2)
        yield running
