"""Predicts the run times of a generated history during its replay, as the control plane does."""

from collections.abc import Sequence

from scheduling.prediction.keys import JobKind, keys_of
from scheduling.prediction.learner import Learner, Outcome
from scheduling.prediction.predictor import Prediction, Predictor
from tests.simulator.histories import HistoryJob


def kind_of(entry: HistoryJob) -> JobKind:
    return JobKind.of(
        int(entry.job.tenant.removeprefix("tenant")),
        int(entry.job.user.removeprefix("user")),
        entry.command,
        entry.job.gpus,
    )


class ReplayPredictor:
    """The predictor of a replay: it learns from the ends in the order in which they happen."""

    def __init__(self, history: Sequence[HistoryJob]) -> None:
        self._entries = {entry.job.id: entry for entry in history}
        self._kinds = {job_id: kind_of(entry) for job_id, entry in self._entries.items()}
        self._keys = {job_id: keys_of(kind) for job_id, kind in self._kinds.items()}
        self._running: dict[str, dict[int, float]] = {}
        self._learner = Learner()
        self._predictor = Predictor(self._learner.summaries, self._learner.trackers)

    def predicted_seconds(self, job_id: int, now: float) -> float | None:
        siblings = self._running.get(self._keys[job_id][1])
        age = now - min(siblings.values()) if siblings else 0.0
        return self._predictor.order_seconds(self._keys[job_id], now, None, age)

    def note_start(self, job_id: int, now: float) -> None:
        self._running.setdefault(self._keys[job_id][1], {})[job_id] = now

    def learn_end(self, job_id: int, now: float) -> None:
        del self._running[self._keys[job_id][1]][job_id]
        entry = self._entries[job_id]
        self._learner.learn(Outcome(self._kinds[job_id], now, entry.job.run_seconds, entry.ends_by_itself))


class KnownMedians(ReplayPredictor):
    """A predictor that knows the median of each command, which no history shows: the bound of what prediction can
    reach. `after_first_end`: it knows it once a job with the same template has ended, and predicts until then."""

    def __init__(self, history: Sequence[HistoryJob], *, after_first_end: bool) -> None:
        super().__init__(history)
        self._known: set[str] | None = set() if after_first_end else None

    def predicted_seconds(self, job_id: int, now: float) -> float | None:
        if self._known is None or self._keys[job_id][1] in self._known:
            return self._entries[job_id].median_seconds
        return super().predicted_seconds(job_id, now)

    def learn_end(self, job_id: int, now: float) -> None:
        super().learn_end(job_id, now)
        if self._known is not None:
            self._known.add(self._keys[job_id][1])


def outcomes(history: Sequence[HistoryJob]) -> list[tuple[float, Prediction | None, float]]:
    """Return (submitted at, prediction, seconds) of the jobs that ended by themselves, in the order of their ends, as
    if each started at its submit."""
    learner, results = Learner(), []
    for entry in sorted(history, key=lambda entry: entry.job.submitted_at + entry.job.run_seconds):
        job = entry.job
        outcome = Outcome(kind_of(entry), job.submitted_at + job.run_seconds, job.run_seconds, entry.ends_by_itself)
        scored = learner.learn(outcome)
        if entry.ends_by_itself:
            results.append((job.submitted_at, scored and scored.prediction, job.run_seconds))
    return results
