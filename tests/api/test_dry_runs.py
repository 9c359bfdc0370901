"""A dry run of any write is answered as the write would be, and leaves nothing behind (A55)."""

import pytest

from gpusched.lib.sql import query
from tests.api.test_access import BODIES, CALLERS, MATRIX, call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db(transaction=True)
SECRETS = ("/login", "tokens")
WRITES = [row for row in MATRIX if row[0] != "GET"]


def everything():
    """A mark of each table's rows; of tokens not when they were last used."""
    names = [row["t"] for row in query("SELECT table_name AS t FROM information_schema.tables WHERE table_schema = 'public'"
                                       " AND table_type = 'BASE TABLE'")]  # fmt: skip
    return {
        name: query(f"SELECT md5(coalesce(string_agg(x::text, '|' ORDER BY x::text), '')) AS m FROM {name} x")[0]["m"]
        for name in names
        if name not in ("tenants_apitoken", "django_session")
    } | {"tenants_apitoken": query("SELECT count(*) AS n FROM tenants_apitoken")[0]["n"]}


def test_each_write_is_answered_and_nothing_is_kept():
    """With a key, too: a dry run is no answer to give again."""
    make_node(name="n1")
    nlp = make_tenant("nlp")
    own = submit(make_member(nlp), nlp)
    token = make_token(make_user(admin=True))
    before = everything()
    for method, path in WRITES:
        answer = call(method, f"{path.format(own=own)}?dry_run=true", token, BODIES.get((method, path)))
        if path.endswith(SECRETS):
            assert (answer.status_code, answer.json().get("code")) == (400, "invalid"), (path, answer.content)
            continue
        real = MATRIX[method, path][CALLERS.index("admin")]
        assert answer.status_code == (200 if real == 201 else real), (method, path, answer.content)
        assert answer["Dry-Run"] == "true", (method, path)
        now = everything()
        assert {name for name in before if before[name] != now[name]} == set(), (method, path)


def test_what_would_be_refused_is_refused():
    nlp = make_tenant("nlp")
    job = submit(make_member(nlp), nlp)
    stranger = make_token(make_member(make_tenant("other")))
    assert call("POST", f"/api/v1/jobs/{job}/cancel?dry_run=true", stranger).status_code == 404
    assert (
        call("POST", "/api/v1/tenants?dry_run=true", make_token(make_user(admin=True)), {"name": ""}).status_code == 400
    )
    assert call("POST", f"/api/v1/jobs/{job}/cancel?dry_run=true", None).status_code == 401


def test_it_says_that_it_was_one():
    nlp = make_tenant("nlp")
    token = make_token(member := make_member(nlp))
    job = submit(member, nlp)
    dry = call("POST", f"/api/v1/jobs/{job}/hold?dry_run=true", token)
    assert (dry.json()["job"]["state"], dry["Dry-Run"]) == ("held", "true")
    wet = call("POST", f"/api/v1/jobs/{job}/hold?dry_run=false", token)
    assert (wet.json()["job"]["state"], "Dry-Run" in wet) == ("held", False)
