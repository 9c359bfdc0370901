"""Hostile messages of an agent with the credential of its node, in any message of the protocol, and what must not come of
it (A55): it speaks for itself alone, whatever it says."""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
from django.db import transaction
from django.test import Client
from hypothesis import strategies as st

from gpusched.lib.db.sql import query
from gpusched.protocol import agent_messages
from gpusched.protocol.agent_messages import Join, Sync
from jobs.logs import store
from nodes.inventory import join
from tests.api.hostile import SHAPE, is_whole
from tests.api.mutations import NO_JSON, encoded, mutated
from tests.api.operations import writes_of_transaction
from tests.factories import FakeAgent, make_member, make_node, make_tenant, now, run_cycle, submit

LOG = b"theirs"
Told = dict[str, Any]


@dataclass
class Fleet:
    """A node that runs a job, beside another one that does; and a token with which nodes join."""

    agent: FakeAgent
    other: FakeAgent
    join_token: str

    @property
    def mine(self) -> str:
        return self.agent.held[0]

    @property
    def key_of_theirs(self) -> tuple[int, int, int]:
        job_id, attempt, rank = map(int, self.theirs.split("."))
        return job_id, attempt, rank

    @property
    def theirs(self) -> str:
        return self.other.held[0]


def fleet() -> Fleet:
    agents = [make_node(name=name, gpus=2) for name in ("n2", "n3")]
    member = make_member(tenant := make_tenant("team"))
    for _ in agents:
        submit(member, tenant, gpu_count=2)
    run_cycle()
    for agent in agents:
        agent.start_all()
        assert len(agent.held) == 1
    created = Fleet(agents[0], agents[1], join.create_join_token(1.0, "root")[1])
    store.append(*created.key_of_theirs, 0, LOG)
    return created


def full(kind: type[msgspec.Struct], **values: Any) -> Told:
    """A message with all its fields, of those that are not given the defaults: a new field is then there, too."""
    return {**{operation.name: _default(operation) for operation in msgspec.structs.fields(kind)}, **values}


def _default(operation: Any) -> Any:
    if operation.default is not msgspec.NODEFAULT:
        return operation.default
    return None if operation.default_factory is msgspec.NODEFAULT else operation.default_factory()


def facts(agent: FakeAgent) -> Told:
    devices = [{**msgspec.to_builtins(operation), "numa_node": 0, "nvlink_island": 0} for operation in agent.devices]
    isolation = full(agent_messages.Isolation, cgroup=True, limits=["memory"], users="any")
    hint = full(agent_messages.Hint, check="clock", level="warn", says="it is off")
    named = {"labels": {"zone": "a"}, "runtimes": {"docker": "27"}, "driver_version": "570"}
    allowed = msgspec.to_builtins(agent.facts())
    return full(
        agent_messages.NodeFacts, **{**allowed, **named, "devices": devices, "isolation": isolation, "hints": [hint]}
    )


def sync_of(fleet: Fleet) -> Told:
    """A sync that says all that one can say, and is believed."""
    agent = fleet.agent
    xid = full(agent_messages.Xid, code=79, seconds_ago=1)
    numbers = {"utilisation_percent": 50, "memory_used_mb": 100, "temperature_celsius": 50, "power_watts": 99.5,
               "power_limit_watts": 400.0, "sm_clock_mhz": 1000, "memory_clock_mhz": 900, "throttle_reasons": 4,
               "ecc_corrected": 1, "ecc_uncorrected": 0, "process_ids": [7], "occupancy": "clear"}  # fmt: skip
    readings = [full(agent_messages.Reading, uuid=operation.uuid, **numbers, xids=[xid]) for operation in agent.devices]
    started = {"kind": "started", **full(agent_messages.Started, key=fleet.mine, at=now(), pid=4242, seconds_ago=1.0)}
    ended = {"kind": "ended", **full(agent_messages.Ended, key=fleet.mine, at=now(), reason="exited", exit_code=1, started_at=now(),
             peak_memory_mb=5, peak_memory_of="rank", detail="it broke", log_bytes=3, exit_class="cuda_oom", seconds_ago=0.5,
             left={agent.devices[0].uuid: "pid 7 of anna"})}  # fmt: skip
    return full(
        Sync, seq=5, at=now(), boot_id="boot-1", held=[fleet.mine], running=[fleet.mine], saved={fleet.mine: now()},
        limits={fleet.mine: 1}, reports=[started, ended], readings=readings, facts=facts(agent),
    )  # fmt: skip


def join_of(fleet: Fleet) -> Told:
    return full(Join, name=fleet.agent.name, node_key=fleet.agent.key, facts=facts(fleet.agent))


def others(fleet: Fleet) -> tuple[Any, ...]:
    """Find the keys and ids of the other node."""
    agent = fleet.other
    ended = {"kind": "ended", "key": fleet.theirs, "at": now(), "reason": "exited", "exit_code": 0}
    started = {"kind": "started", "key": fleet.theirs, "at": now(), "pid": 1}
    reading = {"uuid": agent.devices[0].uuid, "lost": True, "xids": [{"code": 79, "seconds_ago": 0}]}
    return (
        fleet.theirs, agent.name, agent.devices[0].uuid, ended, started, reading, {fleet.theirs: now()},
        {fleet.theirs: 2}, [fleet.theirs], [ended], [started], [reading], "exited", "node_lost", "cancelled",
    )  # fmt: skip


def impersonations(fleet: Fleet) -> list[Told]:
    """Valid syncs that tell of the other's ranks, devices, or both, as if they were its own."""
    names = [(fleet.mine, fleet.theirs), *zip(_uuids(fleet.agent), _uuids(fleet.other), strict=True)]
    result = []
    for chosen in (names[:1], names[1:], names):
        text = json.dumps(sync_of(fleet))
        for mine, theirs in chosen:
            text = text.replace(mine, theirs)
        result.append(json.loads(text))
    return result


def _uuids(agent: FakeAgent) -> list[str]:
    return [device.uuid for device in agent.devices]


def syncs(fleet: Fleet) -> st.SearchStrategy[bytes]:
    """Valid ones, and those, with a few changes."""
    is_own = mutated(sync_of(fleet), others(fleet), maximum=5)
    return st.one_of(is_own, is_own, *(mutated(operation, maximum=1) for operation in impersonations(fleet)))


def impersonate(fleet: Fleet) -> None:
    """Over HTTP, without any change; and as the log of the other's rank."""
    for operation in impersonations(fleet):
        post(fleet, "/agent/sync", encoded(operation), fleet.agent.credential)
    answer = post(fleet, f"/agent/logs?key={fleet.theirs}&offset={len(LOG)}", b"mine", fleet.agent.credential)
    assert answer.status_code == 404


def say(fleet: Fleet, data: st.DataObject) -> None:
    """Any message over HTTP; taken back afterwards."""
    kind = data.draw(st.sampled_from(("sync", "sync", "join", "logs")))
    if kind == "logs":
        say_log(fleet, data)
        return
    allowed = syncs(fleet) if kind == "sync" else mutated(join_of(fleet), others(fleet), maximum=5)
    raw = data.draw(st.one_of(allowed, allowed, st.sampled_from(NO_JSON)))
    post(fleet, f"/agent/{kind}", raw, fleet.agent.credential if kind == "sync" else fleet.join_token)


def say_log(fleet: Fleet, data: st.DataObject) -> None:
    mine = st.sampled_from(
        (fleet.mine, fleet.theirs, "1.1", "1.1.1.1", "x", "", "-1.1.0", "9" * 30 + ".1.0", "²", "\x00")
    )
    offset = st.one_of(st.sampled_from(("0", "3", "-1", "1e3", "9" * 15, "9" * 40, "²", "")), st.text(max_size=5))
    body = data.draw(st.one_of(st.binary(max_size=100), st.just(b"x" * ((1 << 20) + 1))))
    requested = {"key": data.draw(st.one_of(mine, st.text(max_size=10))), "offset": data.draw(offset)}
    requested = {
        name: requested[name] for name in data.draw(st.sampled_from((("key", "offset"), ("key",), ("offset",), ())))
    }
    path = "/agent/logs?" + "&".join(
        f"{name}={quote(value, safe='', errors='replace')}" for name, value in requested.items()
    )
    post(fleet, path, body, fleet.agent.credential)


def post(fleet: Fleet, path: str, raw: bytes, credential: str) -> Any:
    """Refused, then nothing is written; or accepted, then nothing about the other node, and what there is is whole."""
    with transaction.atomic():
        written, before_others = writes_of_transaction(), of_others(fleet.agent.id)
        headers = {"Authorization": f"Bearer {credential}"}
        answer = Client().post(path, raw, content_type="application/json", headers=headers)
        assert answer.status_code < 500, answer.content
        if answer.status_code >= 400:
            assert answer["Content-Type"] == "application/problem+json"
            assert (set(answer.json()), answer.json()["request_id"]) == (SHAPE, answer["X-Request-Id"])
            assert writes_of_transaction() == written
        now_others = of_others(fleet.agent.id)
        for name, rows in before_others.items():
            # A join under another name creates another node without an owner.
            assert now_others[name][: len(rows)] == rows, (name, path, raw)
            assert name in ("nodes", "devices") or len(now_others[name]) == len(rows), name
        assert store.read(*fleet.key_of_theirs, 0, 100).data == LOG
        is_whole()
        transaction.set_rollback(True)
        return answer


def of_others(node_id: int) -> dict[str, list[Any]]:
    """All rows about other nodes, and about what runs there: state, devices, logs, ledger."""
    mine = f"SELECT job_id FROM nodes_assignment WHERE node_id = {int(node_id)}"
    elsewhere = f"node_id <> {int(node_id)}"
    return {
        name: query(sql)
        for name, sql in {
            "nodes": f"SELECT * FROM nodes_node WHERE id <> {int(node_id)} ORDER BY id",
            "devices": f"SELECT * FROM nodes_device WHERE {elsewhere} ORDER BY id",
            "readings": f"""SELECT r.* FROM nodes_reading r JOIN nodes_device d ON d.id = r.device_id
                             WHERE d.{elsewhere} ORDER BY d.id""",
            "assignments": f"SELECT * FROM nodes_assignment WHERE {elsewhere} ORDER BY id",
            "allocations": f"""SELECT l.* FROM nodes_allocation l JOIN nodes_assignment a ON a.id = l.assignment_id
                                WHERE a.{elsewhere} ORDER BY l.id""",
            "jobs": f"SELECT * FROM jobs_job WHERE id NOT IN ({mine}) ORDER BY id",
            "attempts": f"SELECT * FROM jobs_attempt WHERE job_id NOT IN ({mine}) ORDER BY id",
            "events": f"SELECT * FROM jobs_jobevent WHERE job_id NOT IN ({mine}) ORDER BY id",
            "ledger": f"SELECT * FROM tenants_usageentry WHERE job_id NOT IN ({mine}) ORDER BY id",
        }.items()
    }
