"""Write the text of notices, for people, and their JSON, for webhooks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from gpusched.lib.times import rfc3339
from gpusched.protocol.reasons import fix_plurals
from notifications import facts, links
from notifications.claims import Claimed
from notifications.models import Kind

_JOB_KINDS = frozenset({Kind.JOB_ENDED, Kind.JOB_FAILED, Kind.JOB_ABOUT_TO_END, Kind.JOB_PREEMPTED})
# What services accept: the shortest limit of those that cut is 2000 characters, of Discord.
MAX_TITLE = 150
# Characters of details in a message; beyond them its other notices have their titles only. Chats split long messages,
# and many parts would take longer than a send may.
MAX_DETAILS = 6_000
_TITLES = {
    Kind.BUDGET: "Budget",
    Kind.RESERVATION_STARTING: "Reservation starts",
    Kind.RESERVATION_IDLE: "Reservation idle",
    Kind.RESERVATION_LOST_GPUS: "Reservation lost GPUs",
    Kind.RESERVATION_RELEASED: "Reservation released",
    Kind.INCIDENT: "Incident",
    Kind.TEST: "Test",
}


@dataclass(frozen=True)
class Rendered:
    """A notice as text. `data`: the same as plain values. `uid`: the id of its delivery."""

    uid: str
    kind: str
    at: datetime
    title: str
    text: str
    data: dict[str, Any]


def render(deliveries: Sequence[Claimed]) -> list[Rendered]:
    """Return the text of each delivery, in order."""
    jobs = facts.of_jobs([_attempt_of(delivery) for delivery in deliveries if delivery.kind in _JOB_KINDS])
    return [_render(delivery, jobs.get(_attempt_of(delivery))) for delivery in deliveries]


def webhook_body(rendered: Rendered) -> str:
    """Return the body of a webhook: type, time of the fact, and data."""
    body = {"type": rendered.kind, "timestamp": rfc3339(rendered.at), "data": rendered.data}
    return msgspec.json.encode(body).decode()


def together(rendered: Sequence[Rendered]) -> tuple[str, str]:
    """Return title and text of one message for all of these, each with its id."""
    if len(rendered) == 1:
        [only] = rendered
        return _title(only.title), f"{only.text}\n\nid {only.uid}"
    counts: dict[str, int] = {}
    for each in rendered:
        counts[each.kind] = counts.get(each.kind, 0) + 1
    summary = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items())
    parts, room = [], MAX_DETAILS
    # Details of jobs that completed or were cancelled come last: the other notices may need an action.
    for each in sorted(rendered, key=lambda each: each.kind == Kind.JOB_ENDED):
        room -= len(each.text)
        parts.append(f"{each.title}\n{each.text}\nid {each.uid}" if room >= 0 else f"{each.title}\nid {each.uid}")
    return _title(f"{len(rendered)} notices: {summary}"), "\n\n".join(parts)


def _title(text: str) -> str:
    return " ".join(f"[gpusched] {text}".split())[:MAX_TITLE]


def _attempt_of(delivery: Claimed) -> tuple[int, int]:
    return delivery.subject_id or 0, int(delivery.data.get("attempt") or 0)


def _render(delivery: Claimed, job: Mapping[str, Any] | None) -> Rendered:
    if delivery.kind not in _JOB_KINDS:
        text = str(delivery.data.get("text", ""))
        title = str(delivery.data.get("title") or _TITLES.get(Kind(delivery.kind), delivery.kind))
        url = links.page_of(delivery.kind, delivery.data)
        data = {**delivery.data, "subject_id": delivery.subject_id, "url": url}
        return Rendered(delivery.uid, delivery.kind, delivery.at, title, "\n".join(filter(None, (text, url))), data)
    if job is None:
        text = f"Job {delivery.subject_id}, which was deleted since."
        return Rendered(delivery.uid, delivery.kind, delivery.at, f"Job {delivery.subject_id}", text,
                        {"job_id": delivery.subject_id, "url": None})  # fmt: skip
    data = facts.job_data(dict(job), delivery.data)
    data["url"] = links.page_of(delivery.kind, data)
    if delivery.kind == Kind.JOB_FAILED:
        data["log"] = facts.log_tail(dict(job), delivery.data)
    if delivery.kind == Kind.JOB_ABOUT_TO_END:
        data["ends_at"] = delivery.data.get("ends_at")
        title, text = _limit_text(data, job)
        text += f"\n{data['url']}" if data["url"] else ""
    else:
        title, text = _job_text(delivery.kind, data)
    return Rendered(delivery.uid, delivery.kind, delivery.at, title, text, data)


def _limit_text(data: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a job that was about to end: quiet hours or a digest may have delayed the message."""
    name, owner = _name_and_owner(data)
    ends_at = data["ends_at"]
    if job["ended_at"] is not None:
        text = f"It was to end at {ends_at} by its time limit, and has ended since."
        return f"{name} was about to end", f"{owner}\n{text}"
    if job["ends_at"] != ends_at:
        text = f"It was to end at {ends_at}. Its time limit was changed since: it ends at {job['ends_at']}."
        return f"{name} was about to end", f"{owner}\n{text}"
    text = f"It ends at {ends_at} by its time limit.\nExtend it: gpusched extend {data['job_id']}"
    return f"{name} is about to end", f"{owner}\n{text}"


def _name_and_owner(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"{data['name']} (job {data['job_id']})", f"Owner: {data['user']} in {data['tenant']}"


def _job_text(kind: str, data: Mapping[str, Any]) -> tuple[str, str]:
    name, owner = _name_and_owner(data)
    ended = "was preempted" if kind == Kind.JOB_PREEMPTED else str(data["state"])
    lines = [owner]
    if data["sentence"]:
        lines.append(f"Reason: {data['sentence']}")
    if data["next_step"]:
        lines.append(f"Next step: {data['next_step']}")
    if data["ran"]:
        places = [f"{data['gpus']} GPUs"] * bool(data["gpus"]) + [", ".join(data["nodes"])] * bool(data["nodes"])
        lines.append(fix_plurals(f"Ran for {data['ran']}" + f" on {' of '.join(places)}" * bool(places)))
    if kind == Kind.JOB_PREEMPTED:
        lines.append("It is in the queue again." if data["requeued"] else "It is not started again.")
    if data["url"]:
        lines.append(data["url"])
    if data.get("log"):
        lines += ["", "Last lines of its log:", *data["log"]]
    return f"{name} {ended}", "\n".join(lines)
