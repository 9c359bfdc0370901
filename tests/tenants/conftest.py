"""An admin."""

import pytest

from tests.factories import make_token, make_user


@pytest.fixture
def admin():
    return make_token(make_user("root", admin=True))
