"""Close the connections of agents whose credential has been replaced: one that was opened before would stay open."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from nodes.inventory import rotation

REFUSAL = "this credential of the node was replaced by a new one"
RETRY_SECONDS = 1.0


class Connection(Protocol):
    """An authenticated connection. `authorization`: the header that opened it."""

    node_id: int
    authorization: str

    def refuse(self, reason: str) -> None: ...


class ReplacedCredentials:
    """The check of a web process. All its state belongs to the event loop; `pool`: has a thread for the database."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._connections: set[Connection] = set()
        self._nodes: set[int] = set()
        self._is_every_node = False
        self._changed = asyncio.Event()
        self._pool = pool

    def connect(self, connection: Connection) -> None:
        self._connections.add(connection)
        # The credential may have been replaced since it was authenticated.
        self._nodes.add(connection.node_id)
        self._changed.set()

    def disconnect(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def on_change(self, changed: dict[str, list[int]]) -> None:
        if "credentials" in changed:
            self._nodes.update(changed["credentials"])
            self._is_every_node |= not changed["credentials"]
            self._changed.set()

    async def check(self) -> None:
        """Refuse connections for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            nodes, is_every, self._nodes, self._is_every_node = self._nodes, self._is_every_node, set(), False
            concerned = [each for each in self._connections if is_every or each.node_id in nodes]
            if not concerned:
                continue
            headers = {each.authorization for each in concerned}
            try:
                replaced = await run_in_thread(self._pool, lambda: rotation.replaced(headers))  # noqa: B023 - awaited
            except (DatabaseAway, WorkFailed):
                self._nodes |= nodes
                self._is_every_node |= is_every
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for each in concerned:
                if each.authorization in replaced:
                    with suppress(Exception):  # it may have broken meanwhile
                        each.refuse(REFUSAL)
