"""Submit a steady stream of small jobs and inference requests to the demo, as three users through the SDK."""

import random
import socket
import sys
import time
from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from gpusched.client import Client
from gpusched.client.errors import Conflict, GpuschedError
from gpusched.installation import SERVER_ROOT
from serving.prewarming import demo_history

USERS = {"ada": "nlp", "grace": "vision", "linus": "students"}
# Enough pending jobs to show a working queue without filling it.
MAX_WAITING = 25
TEXTS = (
    "the quick brown fox",
    "a fast dark fox",
    "stocks fell sharply today",
    "how do I reset my password",
    "ein Haus am See",
)
# An endpoint with pauses between its requests, which pre-warming keeps warm. Its replica needs no GPU: one that holds
# GPUs would yield them to the demo's queue, which is never empty.
KEPT_WARM = "search"
EXAMPLES = SERVER_ROOT / "deploy" / "demo"


class Command(BaseCommand):
    help = "Submit small jobs and inference requests to the demo until it is stopped."
    requires_system_checks = []  # they would double the start-up time

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", required=True)
        parser.add_argument("--seconds-between", type=float, default=1.5)

    def handle(self, *args: Any, **options: Any) -> None:
        chance = random.Random()  # noqa: S311 - variety, not a secret
        tokens = Path(settings.DATA_DIR) / "tokens"
        clients = {user: Client(options["url"], (tokens / user).read_text().strip()) for user in USERS}
        has_endpoints = has_reservation = False
        request_at = 0.0
        while True:
            user = chance.choice(list(USERS))
            try:
                if clients[user].status().pending_jobs < MAX_WAITING:
                    clients[user].submit(tenant=USERS[user], **_job(chance))
                has_endpoints = has_endpoints or _create_endpoints(clients["ada"])
                has_reservation = has_reservation or _reserve(clients["grace"])
                for _ in range(chance.randint(1, 6)):
                    clients["ada"].submit_task("embed", {"text": chance.choice(TEXTS)}, tenant="nlp")
                if time.monotonic() >= request_at:
                    clients["ada"].submit_task(KEPT_WARM, {"text": chance.choice(TEXTS)}, tenant="nlp")
                    request_at = time.monotonic() + chance.uniform(*demo_history.GAP_SECONDS)
            except GpuschedError as error:
                self.stderr.write(f"not submitted, continuing: {error}")
            time.sleep(options["seconds_between"])


def _create_endpoints(client: Client) -> bool:
    """Create an endpoint of each protocol, unless an earlier start of the demo has."""
    command = [sys.executable, str(EXAMPLES / "embeddings.py")]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    one_gpu = {"gpu_count": 1, "gpu_memory_mb": 2000}
    for name, arguments, gpus, options in (
        ("embed", [], one_gpu, {"max_batch": 32, "max_wait_ms": 50, "max_replicas": 2, "memory_per_request_mb": 20}),
        ("embed-openai", ["--port", str(port)], one_gpu, {"protocol": "openai", "port": port, "idle_seconds": 120}),
        (KEPT_WARM, [], {}, {"idle_seconds": demo_history.IDLE_SECONDS}),
    ):
        template = {"command": command + arguments, **gpus}
        try:
            client.create_endpoint(name, template, tenant="nlp", type="embedding", timeout_seconds=120, **options)
        except Conflict:
            continue
    demo_history.store(client.endpoint(KEPT_WARM, tenant="nlp").id, datetime.now(UTC).timestamp(), random.Random(1))  # noqa: S311
    return True


def _reserve(client: Client) -> bool:
    """Book GPUs soon and each day, unless an earlier start of the demo has. Jobs of the demo end within minutes."""
    if not list(client.reservations(tenant="vision", state="planned,active")):
        start = datetime.now(UTC) + timedelta(minutes=6)
        client.reserve(4, start=start, for_seconds=3600, tenant="vision", recurrence="daily", note="demo for visitors")
    return True


def _job(chance: random.Random) -> dict[str, Any]:
    python = sys.executable
    kind = chance.random()
    if kind < 0.25:
        depth = chance.choice([16, 32, 64])
        return {
            "command": [python, str(EXAMPLES / "train_digits.py"), "--hidden", str(depth)],
            "name": f"digits-mlp-{depth}", "gpus": 1, "max_runtime_minutes": 5,
        }  # fmt: skip
    seconds = round(chance.uniform(5, 45))
    gpus = chance.choices([1, 2, 4, 8], [5, 3, 2, 1])[0]
    model = chance.choice([None, None, "A100", "H100"])
    return {
        "command": [python, str(EXAMPLES / "count.py"), str(seconds)],
        "name": chance.choice(["tokenise", "embed", "evaluate", "augment", "sweep"]), "gpus": gpus, "gpu_model": model,
        "priority": chance.choice([300, 500, 500, 500, 1000]), "max_runtime_minutes": 5,
    }  # fmt: skip
