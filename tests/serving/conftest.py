"""What several tests of serving start."""

import pytest

from tests.serving.test_dispatcher import Replicas


@pytest.fixture
def replicas(tmp_path):
    replicas = Replicas(tmp_path)
    yield replicas
    replicas.stop()
