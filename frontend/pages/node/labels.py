"""The labels and taints of a node as lines of text, and the changes that an edit makes."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gpusched.lib.api.problems import invalid
from gpusched.protocol.affinity import Taint, taint_of, taint_text
from gpusched.protocol.job_request import FieldError
from nodes.inventory import labels


def represent(name: str) -> dict[str, str]:
    """Return the labels that admins set and the taints, one per line."""
    taints = msgspec.convert(labels.taints_of(name)["taints"], list[Taint])
    admin_labels = labels.labels_of(name)["from_admin"]
    return {
        "labels": "\n".join(f"{key}={value}" for key, value in sorted(admin_labels.items())),
        "taints": "\n".join(map(taint_text, taints)),
    }


def change_labels(name: str, previous_text: str, new_text: str) -> str:
    """Apply the difference between the previous lines and the new lines."""
    previous, edited = (dict(_read_lines("labels", text, _label)) for text in (previous_text, new_text))
    changes: dict[str, str | None] = dict.fromkeys(previous.keys() - edited.keys())
    changes |= {key: value for key, value in edited.items() if previous.get(key) != value}
    if changes:
        labels.change_labels(name, changes)
    return _message(name, "label", len(changes))


def change_taints(name: str, previous_text: str, new_text: str) -> str:
    """Apply the difference for taints. Skip removals of taints that no longer exist."""
    previous, edited = (_read_lines("taints", text, taint_of) for text in (previous_text, new_text))
    keys = {(taint.key, taint.effect) for taint in edited}
    existing = {(taint["key"], taint["effect"]) for taint in labels.taints_of(name)["taints"]}
    removed = [taint for taint in previous if (taint.key, taint.effect) in existing - keys]
    added = [taint for taint in edited if taint not in previous]
    if removed or added:
        labels.change_taints(name, added, [f"{taint.key}:{taint.effect}" for taint in removed])
    return _message(name, "taint", len(removed) + len(added))


def _read_lines(field: str, text: str, read: Callable[[str], Any]) -> list[Any]:
    lines: Iterable[str] = (line.strip() for line in text.splitlines())
    try:
        return [read(line) for line in lines if line]
    except ValueError as error:
        raise invalid([FieldError(field, "invalid", str(error))]) from error


def _label(line: str) -> tuple[str, str]:
    key, separator, value = line.partition("=")
    if not separator:
        raise ValueError(f"{line[:60]!r} is not a label: write NAME=VALUE, one per line")
    return key.strip(), value.strip()


def _message(name: str, noun: str, count: int) -> str:
    if not count:
        return f"no {noun}s of node {name} changed"
    return f"{count} {noun}{'' if count == 1 else 's'} of node {name} changed"
