"""What hostile callers send, and what they must be answered (A55); a few in tests/api, many in tests/e2e."""

import string

import msgspec
from django.db import transaction
from django.test import Client
from hypothesis import strategies as st

from frontend.consumers import LiveConsumer
from gpusched.lib.sql import query
from gpusched.protocol.jobs import JobRequest
from gpusched.protocol.messages import Join, Sync
from nodes.api import IntentNote, NewJoinToken
from nodes.consumers import AgentConsumer
from nodes.health_api import QuarantineNote
from nodes.idle_api import NewExemption
from scheduling.policy_api import PolicyChanges
from tenants.api import NewTenant, QuotaFields, TenantChanges
from tenants.token_api import Login, NewToken
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

SHAPE = {"type", "title", "status", "detail", "code", "next_step", "request_id", "errors", "error"}
BODIES: dict[tuple[str, str], type[msgspec.Struct]] = {
    ("POST", "/api/v1/jobs"): JobRequest,
    ("POST", "/api/v1/jobs/simulate"): JobRequest,
    ("POST", "/api/v1/tenants"): NewTenant,
    ("PATCH", "/api/v1/tenants/nlp"): TenantChanges,
    ("PUT", "/api/v1/tenants/nlp/quota"): QuotaFields,
    ("POST", "/api/v1/tokens"): NewToken,
    ("POST", "/api/v1/login"): Login,
    ("POST", "/api/v1/nodes/n1/cordon"): IntentNote,
    ("POST", "/api/v1/nodes/join-tokens"): NewJoinToken,
    ("POST", "/api/v1/gpus/1/quarantine"): QuarantineNote,
    ("POST", "/api/v1/idle-exemptions"): NewExemption,
    ("PATCH", "/api/v1/scheduling/policy"): PolicyChanges,
}
WRITTEN = (
    "tenants_tenant", "tenants_quota", "tenants_apitoken", "jobs_job", "jobs_jobevent", "jobs_attempt", "nodes_node",
    "nodes_device", "nodes_jointoken", "nodes_idleexemption", "scheduling_schedulingpolicy", "lib_auditentry",
    "tenants_usageentry", "nodes_assignment", "nodes_allocation",
)  # fmt: skip
# What breaks programs: the ends of numbers, texts that PostgreSQL or UTF-8 cannot hold, wrong types, depth.
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        ["", "\x00", "nlp", "../..", "a" * 300, "%s", "{}", "9" * 40, "2030-01-01T00:00:00Z", "💥", "'; --"]
    ),
    st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=3),
    st.dictionaries(st.text(string.ascii_letters + "\x00", max_size=5), st.text(max_size=5), max_size=3),
)
NO_JSON = st.sampled_from(
    [b"", b"{", b"[" * 50_000, b'{"a":' * 20_000, b"\xff\xfe", b'{"name": "\xff"}', b'{"name": "\\ud800"}', b"null", b"1e999",
     b'{"priority": 1e999}', b'{"gpu_count": 1' + b"0" * 5000 + b"}", b'"text"', b"[]", b"{}x", b"\x00", b"NaN"]
)  # fmt: skip
LISTS = st.tuples(
    st.sampled_from(
        ["jobs", "queue", "audit", "incidents", "jobs/1/logs", "scheduling/cycles", "gpus/1/samples", "rates"]
    ),
    st.sampled_from(["limit", "cursor", "state", "since", "offset", "tail", "rank", "tenant", "open", "resolution"]),
    st.one_of(st.text(max_size=30), st.integers().map(str), st.sampled_from(["WzFd", "W10", "WyJ4Il0", "WzFlNDAwXQ"])),
)


def headers_of_an_admin():
    """With a tenant and a node to talk about."""
    make_member(make_tenant("nlp"))
    make_node(name="n1", gpus=1)
    return {"Authorization": f"Bearer {make_token(make_user(admin=True))}"}


def node_at_work():
    """A node that runs a job, beside another one that does."""
    agents = [make_node(name=name, gpus=1) for name in ("n2", "n3")]
    member = make_member(tenant := make_tenant("team"))
    for _ in agents:
        submit(member, tenant)
    run_cycle()
    for agent in agents:
        agent.start_all()
    assert all(rows for name, rows in of_others(agents[0].id).items() if name != "ledger")  # written at the end of each
    return agents[0]


def write(headers, data):
    """Any write of the API, with JSON that nearly fits or with what is none; taken back afterwards."""
    method, path = data.draw(st.sampled_from(list(BODIES)))
    body = data.draw(body_of(BODIES[method, path]))
    with transaction.atomic():
        before = counts()
        check(Client().generic(method, path, body, content_type="application/json", headers=headers), before)
        transaction.set_rollback(True)


def put_into_every_field(headers, value):
    """One after the other, in each write: the field that forgets to look is found."""
    for (method, path), kind in BODIES.items():
        if path.endswith("/simulate"):
            continue  # the same fields as a submit, and slow
        fields = msgspec.structs.fields(kind)
        for field in fields:
            body = msgspec.json.encode({**_required(fields), field.name: value})
            with transaction.atomic():
                before = counts()
                check(Client().generic(method, path, body, content_type="application/json", headers=headers), before)
                transaction.set_rollback(True)


def ask_list(headers, asked):
    path, name, value = asked
    check(Client().get(f"/api/v1/{path}", {name: value}, headers=headers))


def say_as_agent(node, data):
    """Any message with the credential of a node; taken back afterwards."""
    path, kind = data.draw(st.sampled_from([("join", Join), ("sync", Sync)]))
    body = data.draw(st.one_of(body_of(kind), reports(node.held)))
    headers = {"Authorization": f"Bearer {node.credential}"}
    with transaction.atomic():
        before, others = counts(), of_others(node.id)
        check(Client().post(f"/agent/{path}", body, content_type="application/json", headers=headers), before)
        # Refused or accepted: it has spoken for itself alone, and what it did is whole.
        assert of_others(node.id) == others
        assert not query(_BROKEN)
        transaction.set_rollback(True)


async def say_over_websocket(message):
    """It is closed with a code of ours, or heard."""
    kind, raw = message
    consumer, codes = kind(), []

    async def close(code):
        codes.append(code)

    async def send(text_data):
        pass

    consumer.close, consumer.send = close, send
    await consumer.receive(**({"text_data": raw} if isinstance(raw, str) else {"bytes_data": raw}))
    assert set(codes) <= {4400, 4413}


@st.composite
def body_of(draw, kind):
    """JSON with some fields of a struct, each as it should be or not."""
    if draw(st.integers(0, 5)) == 0:
        return draw(NO_JSON)
    fields = msgspec.structs.fields(kind)
    names = draw(st.lists(st.sampled_from([field.name for field in fields] + ["surplus"]), max_size=4, unique=True))
    return msgspec.json.encode({**_required(fields), **{name: draw(HOSTILE) for name in names}})


def _required(fields):
    """So that most requests come further than the first check."""
    good = {
        "name": "x",
        "tenant": "nlp",
        "command": ["true"],
        "username": "u",
        "password": "p",
        "seq": 1,
        "boot_id": "boot-1",
    }
    return {field.name: good[field.name] for field in fields if field.name in good}


# Devices that are held twice, jobs that run nowhere, and assignments of jobs that have ended.
_BROKEN = """
    SELECT 'device' AS what, device_id AS id FROM nodes_allocation GROUP BY device_id HAVING count(*) > 1
    UNION ALL
    SELECT 'job', j.id FROM jobs_job j WHERE j.state IN ('scheduled', 'running', 'stopping') AND NOT EXISTS
           (SELECT 1 FROM nodes_assignment a JOIN jobs_attempt t ON t.id = a.attempt_id
             WHERE a.job_id = j.id AND t.number = j.attempt AND t.ended_at IS NULL)
    UNION ALL
    SELECT 'allocation', l.id FROM nodes_allocation l JOIN nodes_assignment a ON a.id = l.assignment_id
      JOIN jobs_job j ON j.id = a.job_id WHERE j.state NOT IN ('scheduled', 'running', 'stopping')
"""


def of_others(node_id):
    """All rows about other nodes, and about what runs there: state, devices, ledger."""
    mine = f"SELECT job_id FROM nodes_assignment WHERE node_id = {int(node_id)}"
    return {
        name: query(sql)
        for name, sql in {
            "nodes": f"SELECT * FROM nodes_node WHERE id <> {int(node_id)} ORDER BY id",
            "devices": f"SELECT * FROM nodes_device WHERE node_id <> {int(node_id)} ORDER BY id",
            "assignments": f"SELECT * FROM nodes_assignment WHERE node_id <> {int(node_id)} ORDER BY id",
            "allocations": f"""SELECT l.* FROM nodes_allocation l JOIN nodes_assignment a ON a.id = l.assignment_id
                                WHERE a.node_id <> {int(node_id)} ORDER BY l.id""",
            "jobs": f"SELECT * FROM jobs_job WHERE id NOT IN ({mine}) ORDER BY id",
            "ledger": f"SELECT * FROM tenants_usageentry WHERE job_id NOT IN ({mine}) ORDER BY id",
        }.items()
    }


def counts():
    [row] = query("SELECT " + ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in WRITTEN))
    return row


def check(answer, before=None):
    """A refusal of one shape that has written nothing, or else done."""
    assert answer.status_code < 500, answer.content
    if answer.status_code >= 400:
        assert answer["Content-Type"] == "application/problem+json", answer.content[:200]
        assert set(answer.json()) == SHAPE
        assert answer.json()["request_id"] == answer["X-Request-Id"]
        assert before is None or counts() == before
    return answer


def reports(held):
    """A sync with one report or reading about what is really there, with one wrong value."""
    wrong = {"at": "never", "boot_id": 7, "running": [1], "held": {"a": 1}}
    reading = st.builds(lambda value, name: {"readings": [{"uuid": "GPU-n2-0", name: value}]}, HOSTILE, st.sampled_from(
        ["utilisation_percent", "memory_used_mb", "power_watts", "occupancy", "process_ids", "xids", "ecc_corrected"]))  # fmt: skip
    ended = st.builds(
        lambda value, name: {
            "reports": [
                {"kind": "ended", "key": held[0], "at": "2030-01-01T00:00:00Z", "reason": "exited", name: value}
            ]
        },
        HOSTILE,
        st.sampled_from(
            ["exit_code", "signal", "at", "reason", "started_at", "detail", "peak_memory_mb", "seconds_ago", "key"]
        ),
    )
    foreign = st.sampled_from(["ended", "started"]).map(
        lambda kind: {
            "reports": [{"kind": kind, "key": other_key(held[0]), "at": "2030-01-01T00:00:00Z", "reason": "exited"}]
        }
    )
    odd = st.sampled_from(list(wrong)).map(lambda name: {name: wrong[name]})
    common = {"seq": 5, "at": "2030-01-01T00:00:00Z", "boot_id": "boot-1", "held": held, "running": held}
    return st.one_of(reading, ended, foreign, odd).map(lambda part: msgspec.json.encode({**common, **part}))


def other_key(key):
    """Of the job that was submitted after this one, or before it: it runs on the other node."""
    [row] = query("SELECT id FROM jobs_job WHERE id <> %s", [int(key.split(".")[0])])
    return f"{row['id']}.{key.partition('.')[2]}"


# To which consumer, and what.
MESSAGES = st.tuples(
    st.sampled_from([AgentConsumer, LiveConsumer]),
    st.one_of(NO_JSON, body_of(Sync), st.binary(max_size=50), st.text(max_size=50)),
)
