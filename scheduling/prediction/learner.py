"""Learns from ends of attempts, one after the other, and scores each prediction before it learns from its outcome."""

from math import exp, inf
from typing import NamedTuple

from scheduling.prediction.ends import RECENCY, End, Summary, appended, run_end, summary_of
from scheduling.prediction.keys import OWN_KEYS, TEMPLATE_KEY, TENANT_KEYS, JobKind, baseline_key, keys_of
from scheduling.prediction.predictor import Prediction, estimate, predict, score
from scheduling.prediction.ranges import Tracker


class Outcome(NamedTuple):
    """An end of an attempt that ran for `seconds`. `is_clean`: it completed; `is_stopped`: it was stopped by others, or
    by its limit. Neither: it failed by itself."""

    kind: JobKind
    at: float
    seconds: float
    is_clean: bool = True
    is_stopped: bool = False


class Scored(NamedTuple):
    """The prediction that was valid just before an end, and the median of the user's runs then, in seconds.
    `is_observed` False: the job was stopped or failed early, so its run time is not known."""

    prediction: Prediction
    baseline: float
    is_observed: bool


class Learner:
    """The ends under each key, their summaries, and the trackers of ranges by (tenant, group)."""

    def __init__(self) -> None:
        self.ends: dict[str, tuple[End, ...]] = {}
        self.summaries: dict[str, Summary] = {}
        self.trackers: dict[tuple[int, int], Tracker] = {}
        self.changed_keys: set[str] = set()

    def learn(self, outcome: Outcome) -> Scored | None:
        """Add an end; return how the prediction did that was valid just before. None: there was none."""
        keys, base = keys_of(outcome.kind), self.summaries.get(baseline_key(outcome.kind))
        basis = estimate(self.summaries.get, keys[:TENANT_KEYS], outcome.at)
        predicted, is_observed = None, outcome.is_clean
        if basis is not None:
            group = (outcome.kind.tenant_id, basis.group)
            tracker = self.trackers.get(group, Tracker())
            predicted = predict(basis, tracker, None)
            if not outcome.is_stopped:
                is_observed |= outcome.seconds >= self._shortest_failure(keys[TEMPLATE_KEY], predicted.p10)
            if is_observed:
                self.trackers[group] = tracker.updated(score(basis, outcome.seconds))
        end = run_end(outcome.at, outcome.seconds, is_observed, outcome.kind.user_id)
        for number, key in enumerate(keys):
            recency = RECENCY if number <= TEMPLATE_KEY else 1.0
            self.append(key, end, spans_users=number >= OWN_KEYS, recency=recency)
        self.append(baseline_key(outcome.kind), end, spans_users=False)
        if predicted is None or base is None:
            return None
        return Scored(predicted, exp(base.median), is_observed)

    def append(self, key: str, end: End, *, spans_users: bool, recency: float = 1.0) -> None:
        """Add an end to one key."""
        self.ends[key] = appended(self.ends.get(key, ()), end, spans_users=spans_users)
        self.summaries[key] = summary_of(self.ends[key], spans_users=spans_users, recency=recency)
        self.changed_keys.add(key)

    def _shortest_failure(self, template: str, p10: float) -> float:
        """Return the seconds from which a failure is the end of a usual run, and no early failure, which tells little
        about a run that succeeds: the prediction's p10. The first failure of a command may be either."""
        own = self.summaries.get(template)
        if own is None:
            return inf
        return p10 if own.weight else exp(own.median)
