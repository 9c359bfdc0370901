"""The metrics of notifications."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from gpusched.lib import histograms
from gpusched.lib.db.sql import query
from notifications import heartbeat
from scheduling.status.metric_families import counter, gauge

ATTEMPTS = "gpu_scheduler_notification_attempts_total"
RESULTS = ("sent", "failed", "given_up")
_PRESENT = """
    SELECT count(*) AS pending,
           coalesce(max(extract(epoch FROM now() - created_at)) FILTER (WHERE attempts > 0), 0)::float8 AS oldest
      FROM notifications_delivery WHERE state = 'pending'
"""


def collect() -> Iterator[Metric]:
    """Yield the metrics of all deliveries together: routes are private, and no label."""
    present = next(iter(query(_PRESENT)), {"pending": 0, "oldest": 0.0})
    pending, oldest = gauge("gpu_scheduler_notifications_pending"), gauge("gpu_scheduler_notifications_oldest_seconds")
    pending.add_metric([], present["pending"])
    oldest.add_metric([], present["oldest"])
    sender, age = gauge("gpu_scheduler_notifications_sender_age_seconds"), heartbeat.age_seconds()
    if age is not None:
        sender.add_metric([], age)
    attempts, counted = counter(ATTEMPTS), histograms.read(ATTEMPTS)
    for result in RESULTS:
        attempts.add_metric([result], counted[result][1] if result in counted else 0)
    yield from (pending, oldest, sender, attempts)


def count(result: str, number: int) -> None:
    """Count attempts with this result, in the caller's transaction."""
    if number:
        histograms.observe(ATTEMPTS, {result: [1.0] * number})
