"""The OpenAI API in this web process: its parts, connected."""

from collections.abc import Callable, Collection

from gpusched.lib.bus.listener import Listener, listener
from serving.openai.balancer import Balancer
from serving.openai.connections import Connections, OpenPort
from serving.openai.measurements import Measurements
from serving.openai.prober import Prober
from serving.openai.proxy import Proxy
from serving.openai.recorder import Recorder
from serving.openai.relay import client_left


class OpenAIService:
    """`open_port` opens a stream to a port of a job, or raises ReplicaLost; `local_nodes` returns the nodes whose
    agents are connected here; `replace` ends the job of a replica that hangs; `dispatcher` returns the id of this web
    process's lease, None before it has one."""

    def __init__(
        self,
        open_port: OpenPort,
        local_nodes: Callable[[], Collection[int]],
        replace: Callable[[int], None],
        dispatcher: Callable[[], int | None],
        notifications: Listener = listener,
    ) -> None:
        measurements, connections = Measurements(), Connections(open_port)
        self._recorder = Recorder(self._wake)
        self._balancer = Balancer(dispatcher, self._drop, notifications)
        self.proxy = Proxy(self._balancer, self._recorder, measurements, connections, notifications)
        self._prober = Prober(
            connections, local_nodes, replace, dispatcher, self.proxy.in_flight, self.proxy.unchecked, measurements,
            notifications,
        )  # fmt: skip

    def start(self) -> None:
        """Start the upkeep, once."""
        self._prober.start()

    async def stop(self) -> None:
        """Stop, for tests, each of which has its own event loop."""
        for part in (self._prober, self._balancer, self._recorder):
            await part.stop()

    def _wake(self) -> None:
        self._balancer.wake()

    def _drop(self, request_id: int) -> None:
        self._recorder.put(client_left(request_id))
