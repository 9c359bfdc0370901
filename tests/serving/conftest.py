"""Fixtures that several tests of serving share."""

import pytest

from tests.serving.test_dispatcher import Replicas


@pytest.fixture
def replicas(tmp_path):
    replicas = Replicas(tmp_path)
    yield replicas
    replicas.stop()
