"""Fixtures that several tests of serving share."""

import pytest

from tests.factories import make_token
from tests.serving.replicas import Replicas
from tests.serving.requests import make_endpoint


@pytest.fixture
def replicas(tmp_path):
    replicas = Replicas(tmp_path)
    yield replicas
    replicas.stop()


@pytest.fixture
def endpoint(tenant, user):
    return make_endpoint(tenant, user)


@pytest.fixture
def token(user):
    return make_token(user)
