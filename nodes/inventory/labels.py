"""Labels and taints of nodes: set by admins, beside those that agents report."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from django.db import transaction

from gpusched.lib.api.problems import invalid
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.protocol.affinity import MAX_TAINTS, Taint, TaintEffect, taint_problems, taint_text
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.labels import LABEL_RULE, MAX_LABELS, is_label, is_value
from nodes import not_found
from nodes.models import Node


def labels_of(name: str) -> dict[str, Any]:
    """Return all labels of a node and their sources. An admin's label overrides the agent's."""
    return _represent_labels(_node(name))


def change_labels(name: str, changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Set labels, or remove those whose value is None, and leave the others. An agent's labels cannot be removed."""
    _require_labels(changes)
    with transaction.atomic():
        node = _node(name, is_locked=True)
        previous = dict(node.admin_labels)
        unchanged = {key: value for key, value in previous.items() if key not in changes}
        after = {**unchanged, **{key: value for key, value in changes.items() if value is not None}}
        removed = {key for key, value in changes.items() if value is None}
        if stuck := sorted((removed & node.labels.keys()) - previous.keys()):
            message = f"the agent of {name} reports it: set another value instead of removing it"
            raise invalid([FieldError(f"labels.{key}", "reported_by_agent", message) for key in stuck])
        if len(after) > MAX_LABELS:
            raise invalid([FieldError("labels", "too_long", f"at most {MAX_LABELS} labels on a node")])
        node.admin_labels = after
        node.save(update_fields=["admin_labels"])
        _announce("node.labels", node, previous, after)
    return _represent_labels(node)


def taints_of(name: str) -> dict[str, Any]:
    return {"node": name, "taints": _node(name).taints}


def change_taints(name: str, add: Sequence[Taint], remove: Iterable[str]) -> dict[str, Any]:
    """Remove the taints that `remove` names, as `KEY` or `KEY:EFFECT`, then add others. A taint replaces the one with
    its key and effect. Running jobs go on. 400 for a taint that the node does not have."""
    _require_taints(add)
    with transaction.atomic():
        node = _node(name, is_locked=True)
        previous = msgspec.convert(node.taints, list[Taint])
        current = {(taint.key, str(taint.effect)): taint for taint in previous}
        for number, word in enumerate(remove):
            removed = [key for key in current if word in (key[0], ":".join(key))]
            if not removed:
                message = f"node {name} has no taint {word}; give its KEY or KEY:EFFECT"
                raise invalid([FieldError(f"remove[{number}]", "unknown", message)])
            for key in removed:
                del current[key]
        current |= {(taint.key, str(taint.effect)): taint for taint in add}
        if len(current) > MAX_TAINTS:
            raise invalid([FieldError("add", "too_long", f"at most {MAX_TAINTS} taints on a node")])
        after = [current[key] for key in sorted(current)]
        node.taints = msgspec.to_builtins(after)
        node.save(update_fields=["taints"])
        texts = [[taint_text(taint) for taint in taints] for taints in (previous, after)]
        _announce("node.taints", node, {"taints": texts[0]}, {"taints": texts[1]})
    return {"node": name, "taints": node.taints}


def _represent_labels(node: Node) -> dict[str, Any]:
    merged = {**node.labels, **node.admin_labels}
    return {"node": node.name, "labels": merged, "from_admin": node.admin_labels, "from_agent": node.labels}


def _node(name: str, *, is_locked: bool = False) -> Node:
    nodes = Node.objects.select_for_update() if is_locked else Node.objects
    node = nodes.filter(name=name, removed_at=None).first() if "\x00" not in name else None
    if node is None:
        raise not_found.absent(name)
    return node


def _announce(action: str, node: Node, previous: dict[str, Any], current: dict[str, Any]) -> None:
    log.record(action, f"node {node.name}", previous, current)
    events.changed("nodes", [node.pk])
    wake.request_cycle()


def _require_labels(changes: Mapping[str, str | None]) -> None:
    bad = [key for key, value in changes.items() if not is_label(key) or not is_value(value or "")]
    if bad:
        raise invalid([FieldError(f"labels.{key[:64]}", "invalid_label", f"{LABEL_RULE}") for key in bad])


def _require_taints(taints: Sequence[Taint]) -> None:
    errors = [
        FieldError(f"add[{number}]", "invalid_taint", problem)
        for number, taint in enumerate(taints)
        for problem in taint_problems(taint)
    ]
    keys = [(taint.key, taint.effect) for taint in taints]
    if len(set(keys)) < len(keys):
        errors.append(
            FieldError("add", "duplicate", f"names one key twice with one effect of {', '.join(TaintEffect)}")
        )
    if errors:
        raise invalid(errors)
