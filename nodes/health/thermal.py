"""Derive from readings, with hysteresis, which devices are hot or throttled, and store that with the device.

A device is hot from the threshold on (85 °C by default), or while its hardware throttles itself. It cools down after a
minute of readings that are all at least 10 °C below. Unknown values change nothing, except that throttling, which
blocks a device, must be reported at least once a minute, and that without a temperature a minute without throttling is
enough. A busy GPU at 66 to 80 °C is neither."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import columns, prepared

# Bits of nvmlDeviceGetCurrentClocksEventReasons: HwSlowdown (heat, power brake, too much power) and HwThermalSlowdown.
SLOWDOWN = 0x08 | 0x40
SLOWED_NOTE = "slowed down by its own hardware"
HYSTERESIS_CELSIUS, COOL_SECONDS = 10, 60.0


class ThermalState(NamedTuple):
    """`cool_since`: seconds since the epoch. Every known temperature of a hot device since then was cool or, if it is
    throttled, no reading included throttling. None: the last reading was neither."""

    is_hot: bool = False
    is_slowed: bool = False
    cool_since: float | None = None


def next_state(
    previous: ThermalState, temperature_celsius: int | None, throttle_reasons: int | None, now: float, hot: int
) -> ThermalState:
    """Return the state of a device after one more reading. `hot`: the threshold in °C. None in a reading: unknown."""
    if throttle_reasons is not None and throttle_reasons & SLOWDOWN:
        return ThermalState(True, True)
    if previous.is_slowed:
        if throttle_reasons is not None:
            # A GPU that never reports a temperature could not cool down otherwise.
            previous = ThermalState(True, False, now if temperature_celsius is None else None)
        else:
            # No longer reported: it holds for a minute, so that a silent driver does not block the device forever.
            since = _since(previous, now)
            return ThermalState(True, True, since) if now - since < COOL_SECONDS else ThermalState(True)
    if not previous.is_hot:
        return ThermalState(temperature_celsius is not None and temperature_celsius >= hot)
    if temperature_celsius is None and (throttle_reasons is None or previous.cool_since is None):
        return previous
    if temperature_celsius is not None and temperature_celsius > hot - HYSTERESIS_CELSIUS:
        return ThermalState(True)
    cool_since = _since(previous, now)
    return ThermalState(True, False, cool_since) if now - cool_since < COOL_SECONDS else ThermalState()


def _since(previous: ThermalState, now: float) -> float:
    """Return `cool_since`; `now` if there is none, or if it is later, because the clock was set back."""
    return now if previous.cool_since is None else min(previous.cool_since, now)


# Most readings change nothing: skip devices that were not hot and still are not.
_CONCERNED = f"""
    SELECT d.id, d.node_id, d.health = 'hot' AS is_hot, d.is_slowed,
           extract(epoch FROM d.cool_since)::float8 AS cool_since, t.temperature, t.throttle,
           extract(epoch FROM clock_timestamp())::float8 AS now
      FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::bigint[]) AS t (node_id, uuid, temperature, throttle)
      JOIN nodes_device d ON d.node_id = t.node_id AND d.uuid = t.uuid
     WHERE d.health IN ('ok', 'hot')
       AND (d.health = 'hot' OR d.is_slowed OR t.temperature >= %s OR t.throttle & {SLOWDOWN} <> 0)
"""
_CHANGE = """
    UPDATE nodes_device d
       SET health = CASE WHEN t.is_hot THEN 'hot' ELSE 'ok' END, is_slowed = t.is_slowed,
           cool_since = to_timestamp(t.cool_since), health_note = coalesce(t.note, d.health_note)
      FROM unnest(%s::bigint[], %s::bool[], %s::bool[], %s::float8[], %s::text[])
        AS t (id, is_hot, is_slowed, cool_since, note)
     WHERE d.id = t.id AND d.health IN ('ok', 'hot')
"""


def apply_readings(readings: Sequence[tuple[int, str, int | None, int | None]], hot: int) -> None:
    """Apply (node, UUID, °C, throttle reasons); a GPU is hot from `hot` °C on. Only changes are written and
    announced."""
    changed: list[tuple[int, bool, bool, float | None, str | None]] = []
    nodes: set[int] = set()
    for row in prepared(_CONCERNED, [*columns(readings, 4), hot]):
        previous = ThermalState(row["is_hot"], row["is_slowed"], row["cool_since"])
        after = next_state(previous, row["temperature"], row["throttle"], row["now"], hot)
        if after != previous:
            changed.append((row["id"], *after, _note(previous, after, row["temperature"], hot)))
        if after[:2] != previous[:2]:
            nodes.add(row["node_id"])
    if changed:
        prepared(_CHANGE, _ordered(changed))
    if nodes:
        events.changed("nodes", nodes)
        wake.request_cycle()


def _note(previous: ThermalState, after: ThermalState, celsius: int | None, hot: int) -> str | None:
    """Describe why the device is hot. None if its state has not changed."""
    if after[:2] == previous[:2]:
        return None
    if after.is_slowed:
        return SLOWED_NOTE + ("" if celsius is None else f" at {celsius} °C")
    if previous.is_slowed and after.is_hot:
        return f"was {SLOWED_NOTE}"
    return f"{celsius} °C, hot from {hot} °C" if after.is_hot else ""


def _ordered(rows: list[tuple[int, bool, bool, float | None, str | None]]) -> list[list[Any]]:
    """Order rows by id: two batches that touch the same devices lock them in one order."""
    return columns(sorted(rows, key=lambda row: row[0]), 5)
