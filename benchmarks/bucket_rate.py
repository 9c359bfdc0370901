"""The rate that a token bucket admits, with four web processes and clients that poll at several intervals."""

import threading
import time
from urllib.parse import urlsplit

import psycopg

from benchmarks.submit import connected, request_of
from tests.system.stack import Stack

WEB_PROCESSES = 4
# Seconds between the polls of each client, how many clients there are, and the rate of the bucket per second. They ask
# for more than the rate, but not for more than the machine answers.
INTERVALS = ((0.001, 4, 15.0), (0.01, 4, 15.0), (1.0, 32, 15.0))
BURST, TOKENS = 20, 500


def bucket_rate(seconds: int) -> tuple[dict[str, float | int | str], int]:
    """Return the largest error in percent, and how many answers were wrong or admitted above the burst."""
    errors: list[float] = []
    failures = 0
    with Stack(web_processes=WEB_PROCESSES) as stack:
        stack.fleet(1)
        stack.client().submit(["sleep", "3600"], gpus=8)  # leaves no GPU to a replica
        for number, (interval, clients, rate) in enumerate(INTERVALS):
            error, failed = _admitted(stack, f"limited{number}", interval, clients, rate, seconds)
            errors.append(error)
            failures += failed
    figures: dict[str, float | int | str] = {"bucket_error_percent": max(errors)}
    names = ("1ms", "10ms", "1s")
    return figures | {
        f"bucket_error_{name}_percent": error for name, error in zip(names, errors, strict=True)
    }, failures


def _admitted(stack: Stack, name: str, interval: float, clients: int, rate: float, seconds: int) -> tuple[float, int]:
    with stack.client() as client:
        tenant = client.create_tenant(name).name
        client.create_endpoint(
            name, {"command": ["true"], "gpu_count": 1}, tenant=tenant, max_queue=1_000_000, timeout_seconds=3600
        )
        client.create_bucket(tenant, scope="tenant", rate_per_second=rate, burst=BURST)
    request = request_of(stack.url, stack.token(), {"endpoint": name, "tenant": tenant, "input": 1}, "tasks")
    takes, wrong = _poll(stack, request, interval, clients, max(seconds, round(TOKENS / rate)))
    times = _times(stack, name)
    span = times[-1] - times[0]
    error = 100 * abs(len(times) - BURST - rate * span) / (rate * span)
    return error, wrong + abs(len(times) - len(takes)) + _above_burst(takes, rate)


def _poll(
    stack: Stack, request: bytes, interval: float, clients: int, seconds: float
) -> tuple[list[tuple[float, float]], int]:
    """Return when each admitted request was sent and answered, and how many answers were neither 201 nor 429."""
    takes: list[tuple[float, float]] = []
    wrong: list[int] = []
    began = time.monotonic()

    def poll(number: int) -> None:
        due = began + interval * number / clients
        with connected(urlsplit(stack.url)) as exchange:
            while due < began + seconds:
                time.sleep(max(0.0, due - time.monotonic()))
                sent = time.monotonic()
                status, _ = exchange(request)
                if status == 201:
                    takes.append((sent, time.monotonic()))
                elif status != 429:
                    wrong.append(status)
                due = max(due + interval, time.monotonic())

    threads = [threading.Thread(target=poll, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return takes, len(wrong)


def _times(stack: Stack, name: str) -> list[float]:
    """Return when the admitted requests were queued, by the clock of the database."""
    sql = """SELECT date_part('epoch', r.queued_at) FROM serving_inferencerequest r
               JOIN serving_endpoint e ON e.id = r.endpoint_id WHERE e.name = %s ORDER BY 1"""
    with psycopg.connect(stack.database_url()) as database:
        return [row[0] for row in database.execute(sql, [name]).fetchall()]


def _above_burst(takes: list[tuple[float, float]], rate: float) -> int:
    """Return how many windows of time, from the sending of one request to the answer of a later one, had more takes
    than the burst and what flowed in during the window."""
    ends = sorted(answered for _, answered in takes)[:: max(1, len(takes) // 50)]
    windows = [(sent, end) for sent, _ in takes for end in ends if end > sent]
    return sum(
        sum(begin <= sent and answered <= end for sent, answered in takes) > BURST + rate * (end - begin) + 1e-6
        for begin, end in windows
    )
