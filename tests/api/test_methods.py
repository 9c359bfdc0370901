"""HEAD wherever GET is, and 405 with `Allow` for what an address does not do, on pages too (A55)."""

import pytest
from django.test import Client

from tests.api.calls import call
from tests.api.operations import Stage, operations
from tests.factories import make_member, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db
PAGES = ("/", "/fleet/", "/queue/", "/jobs/", "/nodes/", "/tenants/", "/submit/", "/tokens/", "/login/")


@pytest.fixture
def admin():
    return make_user(admin=True)


@pytest.fixture
def browser(admin):
    result = Client(enforce_csrf_checks=True)
    result.force_login(admin)
    return result


def test_head_is_answered_like_get(admin):
    stage, token = Stage(), make_token(admin)
    paths = [stage.address(operation) for operation in operations() if not operation.is_write]
    for path in [*paths, "/metrics", "/ready", "/api/v1/metrics", "/api/v1/openapi.json", "/api/v1/docs"]:
        get, head = (call(method, path, token) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head["Content-Type"] == get["Content-Type"], path


@pytest.mark.parametrize("path", PAGES)
def test_pages_allow_get_and_name_their_methods(path, browser):
    assert browser.head(path).status_code == browser.get(path).status_code
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = browser.generic(method, path)
        assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD, POST"), method
        assert b"This page does not support this action" in answer.content


def test_write_only_addresses_reject_get(browser):
    job = submit(make_member(nlp := make_tenant("nlp")), nlp)
    answer = browser.get(f"/jobs/{job}/cancel/")
    assert (answer.status_code, answer["Allow"]) == (405, "POST")
    assert b"This page does not support this action" in answer.content
