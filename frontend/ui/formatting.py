"""Format states, durations, moments and sizes for pages. The page's script formats them alike."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from frontend.ui.wait_groups import group_of
from gpusched.protocol.times import MOMENT, format_duration

STATE_SYMBOLS: Mapping[str, str] = {
    "busy": "■", "held_idle": "◧", "free": "□", "unavailable": "▨", "ok": "□", "hot": "▲", "quarantined": "✕",
    "dirty": "◆", "foreign": "◆", "degraded": "✕", "lost": "▨", "unknown": "▨",
    "pending": "○", "held": "‖", "scheduled": "◔", "running": "■", "stopping": "◩", "completed": "✓", "failed": "✕",
    "cancelled": "⊘", "preempted": "↺",
    "online": "■", "joined": "○", "open": "□", "cordoned": "‖", "draining": "◩", "ended": "✓", "red": "✕", "amber": "▲",
    "active": "■", "revoked": "⊘", "expired": "⊘",
}  # fmt: skip


_MOMENT = re.compile(MOMENT)
_NOT_YET = mark_safe('<span class="na" title="not yet">\u2013</span>')  # nosec B308


def state(name: str, word: str = "") -> SafeString:
    """The badge of a state; `word` replaces the word that is shown."""
    shape = STATE_SYMBOLS.get(name, "▨")
    said = word or name.replace("_", " ")
    return format_html(
        '<span class="state state-{}"><i aria-hidden="true">{}</i> {}</span>', name.replace("_", "-"), shape, said
    )


def duration(seconds: Any) -> str:
    """In its two largest units."""
    if seconds is None or seconds == "":
        return "n/a"
    return format_duration(max(0.0, float(seconds)))


def roughly(seconds: Any) -> str:
    """A length of time in one rounded unit: 40 s, 3 min, 5 h, 2 d."""
    if seconds is None or seconds == "":
        return "n/a"
    whole = max(0.0, float(seconds))
    unit, size = ("s", 1) if whole < 60 else ("min", 60) if whole < 3600 else ("h", 3600)
    return f"{int(whole // 86400)} d" if whole >= 172800 else f"{int(whole // size)} {unit}"


def minutes(value: Any) -> str:
    return "none" if value is None else duration(float(value) * 60)


def ago(value: Any) -> SafeString:
    """A moment as age, which the page's script keeps true; its full time on hovering."""
    when = parsed(value)
    if when is None:
        return _NOT_YET
    seconds = (timezone.now() - when).total_seconds()
    said = f"in {roughly(-seconds)}" if seconds < -1 else "just now" if seconds < 5 else f"{roughly(seconds)} ago"
    return _ticking(when, "relative", said, "ago")


def lasting(since: Any) -> SafeString:
    """The time since a moment in one unit, where there is little room."""
    when = parsed(since)
    if when is None:
        return _NOT_YET
    return _ticking(when, "roughly", roughly((timezone.now() - when).total_seconds()), "duration")


def elapsed(since: Any, until: Any = None) -> SafeString:
    """The time since a moment, or until another where that is known."""
    start, end = parsed(since), parsed(until)
    if start is None:
        return _NOT_YET
    if end is not None:
        return format_html('<span class="duration">{}</span>', duration((end - start).total_seconds()))
    return _ticking(start, "since", duration((timezone.now() - start).total_seconds()), "duration")


def clock(value: Any) -> str:
    """2030-01-31 08:00:00 UTC."""
    when = parsed(value)
    return "" if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"


def moment(value: Any) -> SafeString:
    """A moment by the clock, in UTC until the page's script says it by the clock of who looks."""
    when = parsed(value)
    return _NOT_YET if when is None else _ticking(when, "clock", clock(when), "clock")


def clocked(sentence: str | None) -> SafeString:
    """A sentence of the engine, the moments in it by the clock."""
    parts = _MOMENT.split(sentence or "")
    said = [_clocked_part(part) if at % 2 else part for at, part in enumerate(parts)]
    return format_html_join("", "{}", ([part] for part in said))


def _clocked_part(written: str) -> str:
    """As it is, where it only looks like a moment: people's words stand in sentences, too."""
    try:
        return _ticking(datetime.fromisoformat(written.replace(" UTC", "Z")), "clock", written, "clock")
    except ValueError:
        return written


def _ticking(when: datetime, how: str, said: str, name: str) -> SafeString:
    """What the page's script keeps true, by `how`."""
    return format_html(
        '<time datetime="{}" title="{}" class="{}" data-tick="{}">{}</time>',
        when.isoformat(), clock(when), name, how, said,
    )  # fmt: skip


def mib(value: Any) -> str:
    """MiB as people read them: 512 MiB, 80 GiB."""
    if value is None:
        return "n/a"
    size = int(value)
    return f"{size} MiB" if size < 1024 else f"{size / 1024:.4g} GiB" if size < 1 << 20 else f"{size / 2**20:.4g} TiB"


def number(value: Any) -> str:
    """At most two digits behind the point, none if they are zero; n/a for what is unknown."""
    return "n/a" if value is None else f"{float(value):,.2f}".rstrip("0").rstrip(".")


def short_model(name: str) -> str:
    """The model as people call it."""
    return name.removeprefix("NVIDIA ").replace("GeForce ", "")


def part_of(value: Any, whole: Any) -> str:
    """Per cent of a whole for the width of a bar, 0 to 100."""
    return "0" if not whole else f"{min(100.0, 100 * float(value or 0) / float(whole)):.1f}"


def percent(value: Any, whole: Any) -> str:
    """A part in whole per cent; nothing that is there reads as 0 %, and nothing less than all as 100 %."""
    part = float(value or 0) / float(whole) if whole else 0.0
    if 0 < part < 0.01:
        return "< 1 %"
    return f"{99 if 0.99 < part < 1 else int(100 * part + 0.5)} %"


def parsed(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) and value else value or None


def code_words(code: str) -> str:
    """A code as words."""
    return str(code).replace("_", " ") or "waiting"


def bar_own(tenant: dict[str, Any], scale: Any) -> str:
    """The part of a tenant's bar that it holds within its guarantee."""
    return part_of(min(tenant["gpus_held"], tenant["guaranteed_gpus"]), scale)


def borrowed(tenant: dict[str, Any]) -> float:
    """What a tenant holds beyond its guarantee: GPUs that others use less of."""
    return max(0.0, float(tenant["gpus_held"]) - float(tenant["guaranteed_gpus"]))


def shape(name: str) -> SafeString:
    """The shape of a state alone, for where its word stands beside it."""
    return format_html('<i aria-hidden="true">{}</i>', STATE_SYMBOLS.get(name, "▨"))


def cell_words(cell: str) -> str:
    return "held but idle" if cell == "held_idle" else cell


def cells(node: dict[str, Any], is_linked: bool = False) -> SafeString:
    """A node's devices as cells, with a link to what runs there if wished. Built here and not in a template: a page may
    show thousands."""
    return format_html_join("", "{}", ((_cell(node, device, is_linked),) for device in node["devices"]))


def _cell(node: dict[str, Any], device: dict[str, Any], is_linked: bool) -> SafeString:
    said = f"GPU {device['index']} {device['model']}: {cell_words(device['cell'])}"
    kind = f"cell cell-{device['cell']} is-{device['health']}"
    if is_linked and device["jobs"]:
        job = device["jobs"][0]
        label = f"{node['name']} {said}, job {job}"
        return format_html('<a class="{}" href="/jobs/{}/" title="{}" aria-label="{}"></a>', kind, job, label, label)
    return format_html('<span class="{}" title="{}"></span>', kind, said)


def cells_label(node: dict[str, Any]) -> str:
    """The same in one sentence, for who hears the page."""
    counts = Counter(device["cell"] for device in node["devices"])
    return ", ".join(f"{count} {cell_words(cell)}" for cell, count in counts.items())


def waits_on(code: str) -> str:
    """On what of five a reason lets a job wait: next, quota, capacity, you or held."""
    return "held" if code in ("held_by_user", "held_by_admin") else group_of("pending", code)


def weight(seconds: Any) -> str:
    """The width of a part of a bar that grows with its time."""
    return f"{max(float(seconds or 0), 0.1):.1f}"


def summed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Periods of reasons together by reason, the longest first, with how often each was."""
    by: dict[str, dict[str, Any]] = {}
    for one in history:
        total = by.setdefault(one["code"], {"code": one["code"], "seconds": 0.0, "times": 0, "is_now": False})
        total["seconds"] += one["seconds"]
        total["times"] += 1
        total["is_now"] = total["is_now"] or not one["until_at"]
    return sorted(by.values(), key=lambda total: -total["seconds"])


def as_json(value: Any) -> str:
    """For an attribute that the page's script reads; the template escapes it."""
    return msgspec.json.encode(value).decode()


def in_gpus(parts: Any) -> str:
    """25ths of a GPU, in which the engine scores places, as GPUs."""
    return number(float(parts) / 25)


def item(mapping: dict[str, Any], key: str) -> Any:
    """What a mapping has under a key that stands in a variable; else the key itself."""
    return mapping.get(key, key)
