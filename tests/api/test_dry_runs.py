"""A dry run is refused as the write would be, and says that it was one; that each write has one:
test_conventions.py."""

import pytest

from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db(transaction=True)


def test_dry_run_is_refused_like_the_write():
    nlp = make_tenant("nlp")
    job = submit(make_member(nlp), nlp)
    stranger = make_token(make_member(make_tenant("other")))
    assert call("POST", f"/api/v1/jobs/{job}/cancel?dry_run=true", stranger).status_code == 404
    assert (
        call("POST", "/api/v1/tenants?dry_run=true", make_token(make_user(admin=True)), {"name": ""}).status_code == 400
    )
    assert call("POST", f"/api/v1/jobs/{job}/cancel?dry_run=true", None).status_code == 401


def test_dry_run_is_marked_in_the_answer():
    nlp = make_tenant("nlp")
    token = make_token(member := make_member(nlp))
    job = submit(member, nlp)
    dry = call("POST", f"/api/v1/jobs/{job}/hold?dry_run=true", token)
    assert (dry.json()["job"]["state"], dry["Dry-Run"]) == ("held", "true")
    wet = call("POST", f"/api/v1/jobs/{job}/hold?dry_run=false", token)
    assert (wet.json()["job"]["state"], "Dry-Run" in wet) == ("held", False)
