"""The rows of topics: loaded once for all viewers, and restricted to what each may see."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from frontend.live.topics import Rows, View, parse, topics, view
from frontend.viewer import Viewer

# Loaded data by kind of topic, not yet restricted to a viewer.
Loaded = dict[str, Any]


def load(views: Collection[View], loaded_before: Mapping[str, Any] | None = None) -> Loaded:
    """Load what these views show at this moment. `loaded_before`: kinds that are already loaded."""
    loaded = dict(loaded_before or {})
    requested: dict[str, list[tuple[Any, Viewer]]] = {}
    for name, viewer in views:
        if (parsed := parse(name)) is not None:
            requested.setdefault(parsed[0].kind, []).append((parsed[1], viewer))
    for kind in requested:
        _load(kind, requested, loaded)
    return loaded


def kinds_for(views: Collection[View]) -> set[str]:
    """Return the kinds that a load of these views needs."""
    kinds: set[str] = set()
    waiting = [parsed[0].kind for name, _ in views if (parsed := parse(name)) is not None]
    while waiting:
        kind = waiting.pop()
        if kind not in kinds:
            kinds.add(kind)
            waiting += topics()[kind].needs
    return kinds


def _load(kind: str, requested: Mapping[str, Sequence[tuple[Any, Viewer]]], loaded: Loaded) -> None:
    if kind in loaded:
        return
    topic = topics()[kind]
    for needed in topic.needs:
        _load(needed, requested, loaded)
    loaded[kind] = topic.load(requested.get(kind, ()), loaded)


def restrict(loaded: Loaded, name: str, viewer: Viewer) -> Rows | None:
    """Return a topic's rows for a viewer, or None if it does not exist for them. KeyError: unknown topic."""
    parsed = parse(name)
    if parsed is None:
        raise KeyError(name)
    topic, key = parsed
    return topic.restrict(loaded[topic.kind], key, viewer)


def rows(name: str, visible: Sequence[int] | None, user_id: int | None = None) -> Rows:
    """Load one topic; no rows if it does not exist for the viewer. KeyError: unknown topic."""
    return load_for([name], visible, user_id)[name] or {}


def load_for(
    names: Collection[str], visible: Sequence[int] | None, user_id: int | None = None
) -> dict[str, Rows | None]:
    """Load several topics together. KeyError: unknown topic."""
    viewer = Viewer(None if visible is None else tuple(visible), user_id)
    views = [view(name, viewer) for name in names]
    loaded = load(views)
    return {name: restrict(loaded, name, topic_view) for name, topic_view in views}
