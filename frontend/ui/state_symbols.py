"""The shape of each state: told by shape, colour and word together, never by colour alone."""

from collections.abc import Mapping

STATE_SYMBOLS: Mapping[str, str] = {
    "busy": "■", "held_idle": "◧", "free": "□", "unavailable": "▨", "ok": "□", "hot": "▲", "quarantined": "✕",
    "dirty": "◆", "foreign": "◆", "degraded": "✕", "lost": "▨", "unknown": "▨",
    "pending": "○", "held": "‖", "scheduled": "◔", "running": "■", "stopping": "◩", "completed": "✓", "failed": "✕",
    "cancelled": "⊘", "preempted": "↺",
    "online": "■", "joined": "○", "open": "□", "cordoned": "‖", "draining": "◩", "ended": "✓", "red": "✕", "amber": "▲",
    "active": "■", "revoked": "⊘", "expired": "⊘",
}  # fmt: skip
