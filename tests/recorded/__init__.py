"""Messages of the version before this one, recorded from its own agent, for tests of one version of skew (A57)."""

import json
from pathlib import Path
from typing import Any

KEY = "1.1.0"
_MAPS = frozenset({"saved", "environment", "labels", "runtimes", "secrets"})


def messages() -> list[dict[str, Any]]:
    """`path`, `request` and `answer` of each, in order."""
    text = Path(__file__).with_name("protocol_1.json").read_text()
    found: list[dict[str, Any]] = json.loads(text)["messages"]
    return found


def with_later_ideas(message: Any) -> Any:
    """The same from a later version: an unknown field in each object."""
    if isinstance(message, list):
        return [with_later_ideas(part) for part in message]
    if not isinstance(message, dict):
        return message
    known = {name: part if name in _MAPS else with_later_ideas(part) for name, part in message.items()}
    return {**known, "a_later_idea": {"of": ["some", 1]}}
