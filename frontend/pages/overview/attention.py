"""Notices that need attention: one for each kind of problem, with its nodes or jobs."""

from collections.abc import Iterator, Sequence

from frontend.pages.nodes import groups as nodegroups
from gpusched.lib.db.sql import Row, prepared
from gpusched.protocol.states import DeviceHealth, NodeIntent, NodeState

# A notice lists this many nodes or jobs and counts the rest.
MAX_PARTS = 6

# By health: severity, and the sentence for one device and for several.
_UNHEALTHY: dict[str, tuple[str, str, str]] = {
    DeviceHealth.QUARANTINED: ("red", "1 GPU is quarantined", "{} GPUs are quarantined"),
    DeviceHealth.DEGRADED: ("red", "1 GPU had a hardware error", "{} GPUs had hardware errors"),
    DeviceHealth.LOST: ("red", "1 GPU is no longer seen by its node", "{} GPUs are no longer seen by their nodes"),
    DeviceHealth.FOREIGN: (
        "red",
        "1 GPU is used by a process outside any job",
        "{} GPUs are used by processes outside any job",
    ),
    DeviceHealth.DIRTY: (
        "amber",
        "1 GPU is still in use after its job ended",
        "{} GPUs are still in use after their jobs ended",
    ),
}


_HOLDERS = """
    SELECT h.job_id, h.tenant_id, u.username AS "user", count(DISTINCT h.device_id) AS gpus,
           array_agg(DISTINCT h.device_id) AS devices
      FROM nodes_held h JOIN tenants_people u ON u.id = h.user_id
     WHERE h.device_id = ANY(%s) GROUP BY h.job_id, h.tenant_id, u.username ORDER BY gpus DESC, h.job_id
"""


def load(nodes: list[Row], lag: Row) -> list[Row]:
    """Return all notices, worst first, from the rows of the fleet page. Parts about jobs have a `tenant_id` for
    `restrict`."""
    notices = [*_scheduler(lag), *_lost(nodes), *_unhealthy(nodes), *_hot(nodes), *_idle(nodes), *_closed(nodes)]
    severities = ("red", "amber", "note")
    return sorted(notices, key=lambda each: (severities.index(each["severity"]), -each["count"], each["kind"]))


def restrict(notices: Sequence[Row], visible: Sequence[int] | None) -> dict[str, Row]:
    """Return notices by feed key. Jobs of other tenants show only their GPUs."""
    allowed = None if visible is None else set(visible)
    return {
        f"attention:{notice['kind']}": {**notice, **_restrict_parts(notice["parts"], allowed)} for notice in notices
    }


def _restrict_parts(parts_of_notice: list[Row], allowed: set[int] | None) -> Row:
    visible, hidden_gpus = list[Row](), 0
    for part in parts_of_notice:
        tenant_id = part.get("tenant_id")
        if tenant_id is None or allowed is None or tenant_id in allowed:
            visible.append(part)
        else:
            hidden_gpus += part["gpus"]
    if hidden_gpus:
        visible.append({"node": None, "job": None, "words": f"{_gpus(hidden_gpus)} of other tenants", "since": None})
    parts = [{name: part[name] for name in part if name != "tenant_id"} for part in visible[:MAX_PARTS]]
    return {"parts": parts, "more": max(0, len(visible) - MAX_PARTS)}


def _notice(kind: str, severity: str, count: int, sentence: str, href: str | None, parts: list[Row]) -> Row:
    return {"kind": kind, "severity": severity, "count": count, "sentence": sentence, "href": href, "parts": parts}


def _on(node: Row, text: str = "") -> Row:
    return {"node": node["name"], "job": None, "words": text, "since": None}


def _scheduler(lag: Row) -> Iterator[Row]:
    if not lag["is_alive"]:
        yield _notice("scheduler", "red", 1, "The scheduler has not recorded a cycle recently", None, [])


def _lost(nodes: list[Row]) -> Iterator[Row]:
    lost = [node for node in nodes if node["state"] == NodeState.LOST]
    if lost:
        sentence = "1 node stopped reporting" if len(lost) == 1 else f"{len(lost)} nodes stopped reporting"
        parts = [{**_on(node), "since": node["last_seen_at"]} for node in lost]
        yield _notice("lost", "red", len(lost), sentence, "/fleet/?state=lost", parts)


def _unhealthy(nodes: list[Row]) -> Iterator[Row]:
    for health, (severity, singular, plural) in _UNHEALTHY.items():
        matches = [(node, device) for node, device in _devices(nodes) if device["health"] == health]
        if matches:
            sentence = singular if len(matches) == 1 else plural.format(len(matches))
            # A device missing from an online node is not the same as a lost node.
            kind = "gpu_lost" if health == DeviceHealth.LOST else health
            yield _notice(kind, severity, len(matches), sentence, f"/fleet/?health={health}", _per_node(matches))


def _hot(nodes: list[Row]) -> Iterator[Row]:
    hot = [(node, device) for node, device in _devices(nodes) if device["health"] == DeviceHealth.HOT]
    if hot:
        slowed = sum(device["is_slowed"] for _, device in hot)
        sentence = "1 GPU is hot" if len(hot) == 1 else f"{len(hot)} GPUs are hot"
        sentence += f", {slowed} of them too hot to take new jobs" if slowed else ""
        yield _notice("hot", "amber", len(hot), sentence, "/fleet/?health=hot", _per_node(hot))


def _idle(nodes: list[Row]) -> Iterator[Row]:
    """Group idle GPUs by job, as its owner can release them."""
    idle = {device["id"]: device["idle_since"] for _, device in _devices(nodes) if device["cell"] == "held_idle"}
    parts = [
        {"node": None, "job": row["job_id"], "words": f"{_gpus(row['gpus'])}, {row['user']}",
         "since": max(idle[id] for id in row["devices"]), "tenant_id": row["tenant_id"], "gpus": row["gpus"]}
        for row in (prepared(_HOLDERS, [list(idle)]) if idle else ())
    ]  # fmt: skip
    if idle:
        sentence = "1 GPU is held but idle" if len(idle) == 1 else f"{len(idle)} GPUs are held but idle"
        yield _notice("held_idle", "amber", len(idle), sentence, "/fleet/?cell=held_idle", parts)


def _closed(nodes: list[Row]) -> Iterator[Row]:
    closed = [n for n in nodes if n["intent"] != NodeIntent.OPEN and n["state"] != NodeState.LOST]
    if closed:
        sentence = "1 node accepts no new jobs" if len(closed) == 1 else f"{len(closed)} nodes accept no new jobs"
        parts = [_on(node, node["intent"]) for node in closed]
        # The list of nodes puts unhealthy nodes in another group, closed or not.
        groups = {nodegroups.group_of(node) for node in closed}
        href = f"/nodes/?group={groups.pop()}" if len(groups) == 1 else "/nodes/"
        yield _notice("closed", "note", len(closed), sentence, href, parts)


def _devices(nodes: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield the devices of nodes that report; the state of others is unknown."""
    for node in nodes:
        if node["state"] != NodeState.LOST:
            for device in node["devices"]:
                yield node, device


def _per_node(devices: Sequence[tuple[Row, Row]]) -> list[Row]:
    by_name: dict[str, tuple[Row, list[str]]] = {}
    for node, device in devices:
        by_name.setdefault(node["name"], (node, []))[1].append(str(device["index"]))
    return [_on(node, f"GPU {', '.join(indices)}") for node, indices in by_name.values()]


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
