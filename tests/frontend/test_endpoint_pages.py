"""Pages of endpoints: load, latencies, batches and costs; rights; drain, limits and the form to try a request."""

import re

import pytest

from frontend.live import feed
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.states import Role
from serving.endpoints import activity
from serving.endpoints import endpoints as actions
from serving.models import Endpoint
from serving.replicas.reconcile import reconcile
from tenants.models import BucketScope, BucketUse, TokenBucket
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user
from tests.frontend.browsing import browser, carried, found, text_of
from tests.serving.requests import ask, claim

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/endpoints/nlp/embed/"
_END = """
    INSERT INTO serving_inferencerequest
           (endpoint_id, user_id, state, cost, payload, payload_type, attempt, runs_alone, result_type, error_code, error,
            batch_size, flush_reason, queued_at, started_at, ended_at)
    SELECT %(endpoint)s, %(user)s, %(state)s, 1, '1', 'application/json', 1, false, '', '', '', %(size)s, %(reason)s,
           now() - make_interval(secs => %(ago)s + %(seconds)s), now(), now() - make_interval(secs => %(ago)s)
      FROM generate_series(1, %(count)s)
"""


@pytest.fixture
def endpoint(nlp, member):
    make_node(gpus=2)
    template = {"command": ["python", "serve.py"], "gpu_count": 1}
    return actions.create(nlp.pk, {"name": "embed", "template": template}, identity_for(member))


def end(endpoint, user, count=1, *, seconds=0.1, state="completed", size=1, reason="idle", ago=1.0):
    values = {
        "endpoint": endpoint.pk,
        "user": user.pk,
        "count": count,
        "seconds": seconds,
        "state": state,
        "size": size,
    }
    execute(_END, {**values, "reason": reason, "ago": ago})


def spend(endpoint, user, cost, hours_ago=0):
    sql = """INSERT INTO serving_use (endpoint_id, user_id, hour, requests, cost)
             VALUES (%s, %s, date_trunc('hour', now()) - %s * interval '1 hour', 1, %s)"""
    execute(sql, [endpoint.pk, user.pk, hours_ago, cost])


def rows_of(topic, user):
    identity = identity_for(user)
    return feed.rows(topic, identity.visible_tenants(), user.pk)


class TestRows:
    def test_endpoint_row_shows_queue_and_latencies(self, endpoint, member):
        ask(endpoint, member, 3)
        for seconds in (0.1, 0.2, 0.3):
            end(endpoint, member, seconds=seconds)
        end(endpoint, member, 2, state="expired", seconds=30, size=None, reason="")
        [row] = rows_of("endpoints", member).values()
        assert (row["queued"], row["running"], row["completed"], row["expired"]) == (3, 0, 3, 2)
        assert row["oldest_at"] is not None
        assert (round(row["p50_seconds"], 3), round(row["p99_seconds"], 3)) == (0.2, 0.298)

    def test_latencies_are_of_a_bounded_window(self, endpoint, member):
        end(endpoint, member, activity.WINDOW_REQUESTS, seconds=0.1)
        end(endpoint, member, 50, seconds=9, ago=60)
        end(endpoint, member, 50, seconds=9, ago=60 * activity.WINDOW_MINUTES + 60)
        row = activity.latencies([endpoint.pk])[endpoint.pk]
        assert (row["completed"], round(row["p99_seconds"], 3)) == (activity.WINDOW_REQUESTS, 0.1)

    def test_window_has_no_old_requests(self, endpoint, member):
        end(endpoint, member, 5, ago=60 * activity.WINDOW_MINUTES + 60)
        assert activity.latencies([endpoint.pk]) == {}
        assert activity.batches([endpoint.pk]) == {}
        [row] = rows_of("endpoints", member).values()
        assert (row["completed"], row["p50_seconds"]) == (0, None)

    def test_load_reads_few_of_many_ended_requests(self, endpoint, member):
        """A day of requests may be a million rows."""
        end(endpoint, member, 20_000, ago=3600)
        end(endpoint, member, 10)
        execute("ANALYZE serving_inferencerequest")
        for sql, values in (
            (activity._LATENCIES, {"ids": [endpoint.pk]}),
            (activity._BATCHES, {"ids": [endpoint.pk]}),
            (activity._LOADS, {"ids": None}),
        ):
            plan = query(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", values)[0]["QUERY PLAN"]
            blocks = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
            assert blocks < 100, plan

    def test_batches_are_grouped_by_powers_of_two(self, endpoint, member):
        for size, reason, count in ((1, "idle", 2), (3, "wait", 3), (4, "size", 8), (8, "size", 16), (5, "wait", 5)):
            end(endpoint, member, count, size=size, reason=reason)
        rows = rows_of(f"endpoint:{endpoint.pk}", member)
        assert [rows[key] for key in sorted(rows) if key.startswith("batch:")] == [
            {"from": 1, "to": 1, "reasons": {"idle": 2}},
            {"from": 3, "to": 4, "reasons": {"size": 8, "wait": 3}},
            {"from": 5, "to": 8, "reasons": {"size": 16, "wait": 5}},
        ]

    def test_costs_are_of_a_day_by_user(self, endpoint, nlp, member):
        others = [make_member(nlp, name=name) for name in ("bea", "cem", "dan", "eva")]
        for cost, user in enumerate([member, *others], 1):
            spend(endpoint, user, cost)
        spend(endpoint, member, 100, hours_ago=25)
        [row] = rows_of("endpoints", member).values()
        assert (row["cost"], row["cost_users"]) == (15, 5)
        assert row["costs"] == [["eva", 5], ["dan", 4], ["cem", 3]]
        detail = rows_of(f"endpoint:{endpoint.pk}", member)
        assert detail[f"user:{member.username}"] == {"user": member.username, "cost": 1, "requests": 1}

    def test_replicas_link_to_jobs_with_their_cold_start(self, endpoint, member):
        ask(endpoint, member)
        reconcile()
        [[key, row]] = [
            item for item in rows_of(f"endpoint:{endpoint.pk}", member).items() if item[0].startswith("replica:")
        ]
        assert key == f"replica:{row['job_id']}"
        assert (row["job_state"], row["warm_at"], row["cold_start_seconds"]) == ("pending", None, None)
        execute("UPDATE serving_replica SET warm_at = created_at + interval '7 s', busy_at = now()")
        row = rows_of(f"endpoint:{endpoint.pk}", member)[key]
        assert row["cold_start_seconds"] == 7
        [listed] = rows_of("endpoints", member).values()
        assert (listed["replicas"], listed["warm"]) == (1, 1)

    def test_running_requests_are_counted(self, endpoint, member):
        claim(ask(endpoint, member, 2), endpoint=endpoint.pk, replica=77)
        [row] = rows_of("endpoints", member).values()
        assert (row["queued"], row["running"], row["oldest_at"]) == (0, 2, None)

    def test_settings_change_with_the_version_only(self, endpoint, member):
        topic = f"endpoint-settings:{endpoint.pk}"
        before = rows_of(topic, member)
        ask(endpoint, member)
        assert rows_of(topic, member) == before
        actions.change(endpoint.pk, {"max_batch": 3}, identity_for(member))
        assert rows_of(topic, member) != before


class TestVisibility:
    @pytest.mark.parametrize("topic", ["endpoint:{}", "endpoint-settings:{}"])
    def test_endpoint_of_another_tenant_does_not_exist(self, endpoint, anna, topic):
        name = topic.format(endpoint.pk)
        assert feed.load_for([name], identity_for(anna).visible_tenants())[name] is None

    def test_member_lists_only_endpoints_of_own_tenants(self, endpoint, member, anna):
        assert rows_of("endpoints", anna) == {}
        assert carried(browser(anna).get("/endpoints/"))["endpoints"] == {}
        assert carried(browser(member).get("/endpoints/"))["endpoints"].keys() == {str(endpoint.pk)}
        assert rows_of("endpoints", make_user("root", admin=True)).keys() == {str(endpoint.pk)}

    def test_page_of_another_tenants_endpoint_is_not_found(self, endpoint, anna):
        client = browser(anna)
        assert client.get(PATH).status_code == 404
        assert client.post(f"{PATH}drain/").status_code == client.post(f"{PATH}limits/").status_code == 404
        assert Endpoint.objects.get().state == "active"

    def test_removed_endpoint_leaves_the_pages(self, endpoint, member):
        actions.remove(endpoint.pk, identity_for(member))
        assert rows_of("endpoints", member) == {}
        name = f"endpoint:{endpoint.pk}"
        assert feed.load_for([name], identity_for(member).visible_tenants())[name] is None
        assert browser(member).get(PATH).status_code == 404


class TestPage:
    def test_page_shows_settings_and_carries_load(self, endpoint, member):
        answer = browser(member).get(PATH)
        page = text_of(answer)
        assert carried(answer)[f"endpoint:{endpoint.pk}"]["endpoint"]["name"] == "embed"
        assert "python serve.py" in page and "all members of nlp" in page and "No rate limits your requests" in page

    def test_page_shows_the_buckets_that_apply(self, endpoint, nlp, member):
        other = make_member(nlp, name="other")
        for scope, user, rate in (("tenant", None, 0), ("user", None, 5), ("user", member, 7), ("user", other, 9)):
            TokenBucket.objects.create(
                tenant=nlp, scope=BucketScope(scope), user=user, limits=BucketUse.TASKS, rate_per_second=rate, burst=20
            )
        ask(endpoint, member, 4)
        page = text_of(browser(member).get(PATH))
        lines = re.findall(r"<li>(.*?)</li>", page[page.index('id="buckets"') :])
        texts = [re.sub(r"<[^>]+>", "", line) for line in lines]
        assert [text.split(":")[0] for text in texts] == ["All of nlp", "You"]
        assert "0 a second, at most 20 at once" in texts[0] and "7 a second" in texts[1]
        assert "16 left now" in texts[0]

    def test_member_may_try_and_owner_may_change(self, endpoint, nlp, member):
        page = text_of(browser(member).get(PATH))
        assert '<fieldset class="stack">' in page
        assert "endpoint-actions" in page
        assert "endpoint-actions" not in text_of(browser(make_member(nlp, name="colleague")).get(PATH))
        assert "endpoint-actions" in text_of(browser(make_member(nlp, Role.OWNER)).get(PATH))

    def test_form_is_disabled_with_the_reason_for_a_viewer(self, endpoint, nlp):
        page = text_of(browser(make_member(nlp, Role.VIEWER)).get(PATH))
        assert '<fieldset class="stack" disabled>' in page
        assert "member" in found(r'(?s)<p class="note" role="note" data-key="refusal">(.*?)</p>', page)

    def test_form_is_disabled_with_the_reason_for_users_that_are_not_allowed(self, endpoint, nlp, member):
        actions.change(endpoint.pk, {"allowed_users": [member.pk]}, identity_for(member))
        page = text_of(browser(make_member(nlp)).get(PATH))
        assert "You are not among the users of endpoint" in page and '<fieldset class="stack" disabled>' in page

    @pytest.mark.parametrize(("kind", "form"), [("llm", "chat"), ("embedding", "embedding")])
    def test_form_sends_prompts_to_the_openai_api(self, nlp, member, kind, form):
        make_node(gpus=2)
        fields = {"name": "talk", "template": {"command": ["true"]}, "type": kind, "protocol": "openai", "port": 8000}
        actions.create(nlp.pk, fields, identity_for(member))
        page = text_of(browser(member).get("/endpoints/nlp/talk/"))
        assert f'data-try="{form}"' in page and "Prompt" in page and "OpenAI API on port 8000" in page
        assert 'data-view="endpoint-batches"' not in page

    def test_empty_list_says_how_to_create_one(self, member):
        assert "gpusched endpoint create" in text_of(browser(member).get("/endpoints/"))


class TestActions:
    def test_drain_closes_the_form(self, endpoint, member):
        client = browser(member)
        answer = client.post(f"{PATH}drain/", follow=True)
        assert Endpoint.objects.get().state == "draining"
        page = text_of(answer)
        assert (
            "accepts no more requests" in page and '<fieldset class="stack" disabled>' in page and "Drain…" not in page
        )

    def test_drain_by_a_colleague_is_refused(self, endpoint, nlp):
        answer = browser(make_member(nlp)).post(f"{PATH}drain/", HTTP_ACCEPT="application/json")
        assert answer.json()["is_done"] is False
        assert Endpoint.objects.get().state == "active"

    def test_prewarming_is_switched_by_those_who_may_change_the_endpoint(self, endpoint, nlp, member):
        """A74"""
        path, asks = f"{PATH}prewarming/", {"HTTP_ACCEPT": "application/json"}
        colleague = browser(make_member(nlp))
        assert path not in text_of(colleague.get(PATH))
        assert colleague.post(path, {"prewarming": "off"}, **asks).json()["is_done"] is False
        client = browser(member)
        assert path in text_of(client.get(PATH))
        assert client.post(path, {"prewarming": "off"}, **asks).json()["is_done"]
        assert Endpoint.objects.get().prewarming is False
        assert "Turn on" in text_of(client.get(PATH))
        assert "must be on or off" in client.post(path, {"prewarming": "maybe"}, **asks).json()["sentence"]

    def limits(self, client, **changes):
        page = text_of(client.get(PATH))
        form = page[page.index("/limits/") : page.index("Save limits")]
        fields = dict(re.findall(r'name="(\w+)"[^>]*? value="([^"]*)"', form)) | changes
        return client.post(f"{PATH}limits/", fields, HTTP_ACCEPT="application/json").json()

    def test_limits_are_changed(self, endpoint, member):
        client = browser(member)
        assert self.limits(client, max_batch="32", timeout_seconds="2.5")["is_done"]
        changed = Endpoint.objects.get()
        assert (changed.max_batch, changed.timeout_seconds, changed.max_queue) == (32, 2.5, 1000)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"max_batch": "x"}, "must be a whole number"),
            ({"max_batch": "9" * 400}, "must be a whole number"),
            ({"max_batch": "0"}, "greater than or equal to 1"),
            ({"min_replicas": "9"}, "at most max_replicas"),
            ({"version": "7"}, "was changed meanwhile"),
            ({"timeout_seconds": "nan"}, "must be a number"),
        ],
    )
    def test_wrong_limits_are_refused_with_their_field(self, endpoint, member, changes, words):
        answer = self.limits(browser(member), **changes)
        assert not answer["is_done"] and words in answer["sentence"]
        assert Endpoint.objects.get().version == 1


def test_pages_of_a_member_without_a_tenant_are_empty():
    client = browser(make_user("alone"))
    assert client.get("/endpoints/").status_code == 200
    make_tenant("nlp")
    assert client.get(PATH).status_code == 404
