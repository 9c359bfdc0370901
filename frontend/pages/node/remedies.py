"""Problems of a node and its GPUs, with the next step for each."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpusched.lib.db.sql import Row
from nodes.redaction import AUTO_CORDON_NOTE

# (device id or None for the node, kind of incident) → start time as text.
Since = Mapping[tuple[int | None, str], str]

_CLEAR = "Clear it once the cause is fixed. Its health then follows its readings."
# health → meaning, next step, verb of the button.
_DEVICE: Mapping[str, tuple[str, str, str]] = {
    "foreign": (
        "a process that gpusched did not start uses it",
        "It recovers when that process ends. End the process, or ask its owner to.",
        "",
    ),
    "dirty": (
        "a process or memory of an ended job is left on it, or its driver does not answer",
        "It recovers when the process is gone and the memory is free. Kill the process that is named. If the driver"
        " does not answer, read the kernel's log and reboot the node. If nothing changes, the GPU is quarantined.",
        "",
    ),
    "quarantined": ("it is out of service", _CLEAR, "clear"),
    "degraded": (
        "its hardware failed",
        "Check it (nvidia-smi -q, the kernel's log); reset or replace it. " + _CLEAR,
        "clear",
    ),
    "lost": (
        "its driver or its node no longer sees it",
        "It recovers when it is seen again. If it is gone for good, retire it.",
        "retire",
    ),
    "hot": (
        "it is hot, so it is the last choice for new jobs",
        "It recovers when it has been 10 °C below the threshold for a minute.",
        "",
    ),
}
_SLOWED = (
    "its hardware slows it down, so it gets no new jobs",
    "It recovers when it has cooled. Check its cooling.",
    "",
)
_LOST = (
    "its agent stopped reporting; its jobs run again elsewhere if they can be requeued",
    "It recovers when the agent reports again. On the node, run systemctl status gpusched-agent, then"
    " gpusched-agent doctor. If the node is gone for good, remove it.",
)
_AUTO_CORDONED = (
    "the system holds it, because its faults ended jobs of different users, or its disk is read-only",
    "The system releases it after a time that doubles with each hold, if it is online, its disk can be written and no"
    " GPU of it is degraded or lost. You can also release it now.",
    "release",
)
_BY_INTENT = {
    "cordoned": ("it accepts no new jobs; running jobs continue", "Uncordon it.", "uncordon"),
    "draining": ("it accepts no new jobs; running jobs continue until they end", "Uncordon it.", "uncordon"),
}


def problems(node: Mapping[str, Any], since: Since) -> list[Row]:
    """Return problems, worst first: `kind severity subject device_id sentence cause since next_step verb`; `verb` is
    empty without a button."""
    rows = [*_of_node(node, since), *(row for device in node["devices"] for row in _of_device(device, since))]
    return sorted(rows, key=lambda row: row["severity"] != "red")


def is_auto_cordoned(node: Mapping[str, Any]) -> bool:
    """Return whether the system cordoned the node for its faults or its disk."""
    return bool(node["intent"] == "cordoned" and node["intent_note"].startswith(AUTO_CORDON_NOTE))


def _of_node(node: Mapping[str, Any], since: Since) -> Iterator[Row]:
    if node["state"] == "lost":
        yield _row(None, "lost", "red", _LOST[0], "", since.get((None, "node_lost")), _LOST[1], "")
    if node["intent"] != "open":
        sentence, next_step, verb = _AUTO_CORDONED if is_auto_cordoned(node) else _BY_INTENT[node["intent"]]
        yield _row(
            None,
            node["intent"],
            "amber",
            sentence,
            node["intent_note"],
            since.get((None, node["intent"])),
            next_step,
            verb,
        )


def _of_device(device: Mapping[str, Any], since: Since) -> Iterator[Row]:
    health = device["health"]
    if health not in _DEVICE:
        return
    sentence, next_step, verb = _SLOWED if health == "hot" and device["is_slowed"] else _DEVICE[health]
    severity = "amber" if health == "hot" else "red"
    yield _row(
        device, health, severity, sentence, device["health_note"], since.get((device["id"], health)), next_step, verb
    )


def _row(
    device: Mapping[str, Any] | None, kind: str, severity: str, sentence: str, cause: str, since: str | None,
    next_step: str, verb: str,
) -> Row:  # fmt: skip
    return {
        "kind": kind,
        "severity": severity,
        "subject": "The node" if device is None else f"GPU {device['index']}",
        "device_id": None if device is None else device["id"],
        "sentence": sentence,
        "cause": cause,
        "since": since,
        "next_step": next_step,
        "verb": verb,
    }
