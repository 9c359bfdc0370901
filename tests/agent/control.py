"""A small control plane for agents under test, over HTTP: it orders, receives, and can be down."""

import hashlib
import random
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from gpusched.protocol.agent_messages import (
    Desired,
    Ended,
    Join,
    Joined,
    Limit,
    LogAnswer,
    RankSpec,
    Run,
    Signal,
    Started,
    Stop,
    Sync,
    rank_key,
)
from tests.waiting import until_random_moment, wait_for

JOINED = "n1.secret"


def hash_of(credential: str) -> str:
    """Return the hash of the secret in it, as the server stores it."""
    return hashlib.sha256(credential.partition(".")[2].encode()).hexdigest()


class Control:
    """`with Control() as control`: orders what `run` and `stop` say, with each answer, until the end is reported."""

    def __init__(self) -> None:
        self.orders: dict[str, Run | Stop] = {}
        self.limits: list[Limit] = []  # sent in this order, with each answer
        self.signals: list[Signal] = []  # sent with each answer
        self.started: dict[str, Started] = {}
        self.ended: dict[str, list[Ended]] = {}
        self.syncs: list[Sync] = []
        self.joins: list[Join] = []
        self.logs: dict[str, bytes] = {}
        self.is_away = False
        self.is_acknowledging = True
        self.error: str | None = None  # sent with each answer
        self.unknown: set[str] = set()
        self.missing: list[str] = []
        # Of the credential; checked once a new one has been asked for.
        self.secret_hash, self.next_hash = hash_of(JOINED), ""
        self.is_checking = self.is_asking = False
        self.on_step: Callable[[str], None] = lambda step: None
        self.chance = random.Random(40)
        self._lock = threading.Lock()
        control = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                control.upgrade(self)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if control.is_away:
                    self.send_error(503)
                    return
                if not control.admits(self.path, self.headers.get("Authorization", "")):
                    self.send_error(401)
                    return
                status, answer = control.answer(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def restart(self) -> None:
        """Fail like a killed process: connections break, and the port is closed for a while."""
        address, handler = self._server.server_address, self._server.RequestHandlerClass
        self._server.shutdown()
        self._server.server_close()
        until_random_moment(self.chance, 0, 0.3)
        self._server = ThreadingHTTPServer(address, handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def upgrade(self, request: BaseHTTPRequestHandler) -> None:
        request.send_error(404)  # no WebSocket here: agents fall back to HTTP

    def admits(self, path: str, authorization: str) -> bool:
        """Return False for a request that is to be answered 401. The first use of a new credential ends the old one, as
        in nodes/inventory/join.py."""
        if not self.is_checking or path == "/agent/join":
            return True
        shown = hash_of(authorization.removeprefix("Bearer "))
        if self.next_hash and shown == self.next_hash:
            self.secret_hash, self.next_hash, self.is_asking = shown, "", False
            self.on_step("used")
        return shown == self.secret_hash

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            if path == "/agent/join":
                self.joins.append(msgspec.json.decode(body, type=Join))
                self.secret_hash, self.next_hash, self.is_asking = hash_of(JOINED), "", False
                return 200, msgspec.json.encode(Joined(node_id=1, credential=JOINED, heartbeat_seconds=0.05))
            if path == "/agent/sync":
                return 200, msgspec.json.encode(self._handle_sync(msgspec.json.decode(body, type=Sync)))
            return self._append(parse_qs(urlsplit(path).query), body)

    def _handle_sync(self, sync: Sync) -> Desired:
        self.syncs.append(sync)
        for report in sync.reports:
            if isinstance(report, Started):
                self.started[report.key] = report
            else:
                self.ended.setdefault(report.key, []).append(report)
        if self.is_asking and sync.next_credential_hash:
            self.on_step("offered")
            self.next_hash = sync.next_credential_hash
        acknowledged_keys = [report.key for report in sync.reports] if self.is_acknowledging else []
        return Desired(
            seq=sync.seq,
            assignments=[order for order in self.orders.values() for _ in range(2)],  # each one twice, always
            limits=self.limits,
            signals=self.signals,
            missing=self.missing,
            error=self.error,
            rotate=self.is_asking,
            next_credential_hash=self.next_hash,
            acknowledged=[r.key for r in sync.reports if isinstance(r, Ended) and r.key in acknowledged_keys],
            started=[r.key for r in sync.reports if isinstance(r, Started) and r.key in acknowledged_keys],
        )

    def _append(self, query: dict[str, list[str]], body: bytes) -> tuple[int, bytes]:
        key, offset = query["key"][0], int(query["offset"][0])
        if key in self.unknown:
            return 404, b'{"status":404,"code":"not_found","detail":"that rank was never assigned to this node"}'
        have = self.logs.get(key, b"")
        if offset <= len(have) < offset + len(body):
            self.logs[key] = have + body[len(have) - offset :]
        return 200, msgspec.json.encode(LogAnswer(size=len(self.logs.get(key, b""))))

    # --- what tests say ---

    def run(self, *argv: str, job: int = 1, attempt: int = 1, ranks: int = 1, **fields: Any) -> str:
        key = rank_key(job, attempt, 0)
        spec = RankSpec(job_id=job, attempt=attempt, rank=0, ranks=ranks, name="test", argv=list(argv), **fields)
        self.orders[key] = Run(key=key, spec=spec)
        return key

    def stop(self, key: str, reason: str = "cancelled", grace_seconds: int = 5) -> None:
        self.orders[key] = Stop(key=key, reason=reason, grace_seconds=grace_seconds)

    def ask_for_credential(self) -> None:
        self.is_checking = self.is_asking = True

    def limit(self, key: str, version: int, seconds: int) -> None:
        self.limits.append(Limit(key=key, version=version, max_runtime_seconds=seconds))

    def end_of(self, key: str, seconds: float = 20) -> Ended:
        eventually(lambda: self.ended.get(key), seconds, f"the end of {key}")
        return self.ended[key][0]

    def start_of(self, key: str, seconds: float = 20) -> Started:
        eventually(lambda: key in self.started, seconds, f"the start of {key}")
        return self.started[key]

    def signal(self, key: str, sequence: int, name: str) -> None:
        self.signals.append(Signal(key=key, sequence=sequence, signal=name))


def eventually(is_met: Callable[[], object], seconds: float, event: str) -> None:
    """`seconds` on a machine with nothing else to do; one that is busy gets three times as long."""
    wait_for(is_met, 3 * seconds, event, pause=0.01)
