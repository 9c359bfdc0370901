"""Predictions from history: templates, keys, censored ends, shrinkage, ranges, survivors, invented names."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.prediction.ends import (
    HALF_LIFE_SECONDS,
    MAX_ENDS,
    MAX_ENDS_PER_USER,
    End,
    appended,
    censored_quantile,
    decayed,
    run_end,
    summary_of,
)
from scheduling.prediction.keys import JobKind, keys_of
from scheduling.prediction.learner import Learner, Outcome
from scheduling.prediction.memory import OUT_OF_MEMORY_FACTOR, need_of
from scheduling.prediction.predictor import MAX_SECONDS, Predictor, given_elapsed
from scheduling.prediction.ranges import Tracker
from scheduling.prediction.survival import shape_of, survivors_quantile
from scheduling.prediction.templates import label_of, template_of

DAY = 86400.0


def kind(name: str = "train.py", user: int = 1, tenant: int = 1, gpus: int = 1) -> JobKind:
    return JobKind.of(tenant, user, ["python", name], gpus)


def learned(outcomes: list[Outcome]) -> Learner:
    learner = Learner()
    for outcome in outcomes:
        learner.learn(outcome)
    return learner


def predictor(learner: Learner) -> Predictor:
    return Predictor(learner.summaries, learner.trackers)


@pytest.mark.parametrize(
    "other",
    [
        ["python", "train.py", "--lr", "0.5", "--out=/data/runs/x17", "--day", "2026-11-23T10:00:00Z"],
        [
            "/usr/bin/python",
            "/home/me/checkout-2/train.py",
            "--lr",
            "3e-4",
            "--out=/data/runs/y",
            "--day",
            "2026-11-24",
        ],
        ["bash", "-c", "python train.py --lr 7 --out=/data/runs/z --day 20261123"],
        ["python", "train.py", "--lr", "1", "--out=/data/runs/0", "--day", "d41d8cd98f00b204e9800998ecf8427e"],
    ],
)
def test_template_is_the_same_for_other_numbers_dates_hashes_and_file_names(other: list[str]) -> None:
    expected = template_of(("python", "train.py", "--lr", "0.1", "--out=/data/runs/a", "--day", "2026-11-23"))
    assert template_of(tuple(other)) == expected


def test_template_differs_by_script_option_and_folder() -> None:
    commands = [
        ("python", "train.py", "--data=/a/x"),
        ("python", "eval.py", "--data=/a/x"),
        ("python", "train.py", "--data=/b/x"),
        ("python", "train.py", "--dataset=/a/x"),
        ("python", "train.py", "--data=words"),
    ]
    assert len({template_of(command) for command in commands}) == len(commands)


@given(st.lists(st.text(max_size=30), max_size=6))
def test_template_accepts_any_command(command: list[str]) -> None:
    assert template_of(tuple(command)) == template_of(tuple(command))
    assert len(label_of(command)) <= 100


def test_label_names_the_script_or_else_the_program() -> None:
    assert label_of(["python", "-m", "x", "/home/me/train.py", "3"]) == "train.py"
    assert label_of(["bash", "-c", "cd /x && ./run.sh 7"]) == "run.sh"
    assert label_of(["/usr/bin/nvidia-smi"]) == "nvidia-smi"
    assert label_of([]) == ""


def test_keys_go_from_narrow_to_wide_and_three_belong_to_the_user() -> None:
    mine, other = keys_of(kind(user=1)), keys_of(kind(user=2))
    assert [a == b for a, b in zip(mine, other, strict=True)] == [False, False, False, True, True]
    assert keys_of(kind(gpus=2))[1] == mine[1] != keys_of(kind("eval.py"))[1]


def test_key_keeps_its_last_ends_and_does_not_count_an_end_twice() -> None:
    ends: tuple[End, ...] = ()
    for number in range(80):
        ends = appended(ends, run_end(float(number), 100.0, True, 1), spans_users=False)
        ends = appended(ends, run_end(float(number), 100.0, True, 1), spans_users=False)
    assert [end.at for end in ends] == [float(number) for number in range(80 - MAX_ENDS, 80)]


def test_shared_key_keeps_few_ends_of_each_user_with_equal_weight() -> None:
    """A71."""
    ends = appended((), run_end(0.0, 100.0, True, 2), spans_users=True)
    for number in range(1, 200):
        ends = appended(ends, run_end(float(number), 1e6, True, 1), spans_users=True)
    assert sorted(end.user_id for end in ends) == [1] * MAX_ENDS_PER_USER + [2]
    assert exp(summary_of(ends, spans_users=True).median) < 1e6


def test_weight_of_ends_halves_every_fortnight() -> None:
    summary = summary_of([run_end(0.0, 100.0, True, 1)] * 4, spans_users=False)
    assert decayed(summary, HALF_LIFE_SECONDS) == pytest.approx(2.0)
    assert decayed(summary, -5.0) == pytest.approx(4.0)


def test_quantile_counts_stopped_runs_as_at_least_that_long() -> None:
    """Compared with the textbook's Kaplan-Meier: S = 3/4 after 1, 3/8 after 3 (2 is censored), 0 after 4."""
    observations = [(1.0, False, 1.0), (2.0, True, 1.0), (3.0, False, 1.0), (4.0, False, 1.0)]
    assert [censored_quantile(observations, part) for part in (0.2, 0.5, 0.7)] == [1.0, 3.0, 4.0]
    assert censored_quantile([(1.0, False, 1.0), (3.0, False, 1.0)], 0.5) == 2.0
    assert censored_quantile([(2.0, True, 1.0)], 0.5) == 2.0


@given(
    st.lists(st.tuples(st.floats(-5, 20), st.booleans(), st.floats(0.01, 10)), min_size=1, max_size=30),
    st.floats(0.01, 0.99),
)
def test_quantile_lies_within_the_values_and_censoring_never_lowers_it(
    observations: list[tuple[float, bool, float]], part: float
) -> None:
    values = [value for value, _, _ in observations]
    quantile = censored_quantile(observations, part)
    observed = censored_quantile([(value, False, weight) for value, _, weight in observations], part)
    assert min(values) <= quantile <= max(values)
    assert quantile >= observed - 1e-6


def test_prediction_follows_the_runs_of_the_command_and_shrinks_to_the_users_other_runs() -> None:
    others = [Outcome(kind("eval.py"), number * 60.0, 60.0) for number in range(20)]
    runs = [Outcome(kind(), 5000.0 + number, 7200.0) for number in range(10)]
    after_one = predictor(learned(others + runs[:1])).predict(kind(), 5000.0)
    after_ten = predictor(learned(others + runs)).predict(kind(), 5010.0)
    assert after_one is not None and after_ten is not None
    assert 60.0 < after_one.p50 < after_ten.p50 <= 7200.0 * 1.001
    assert after_ten.p50 == pytest.approx(7200.0, rel=0.05)
    assert (after_ten.level, after_ten.end_count) == (0, 10)


def test_prediction_of_a_new_command_comes_from_the_users_jobs_of_the_same_size() -> None:
    runs = [Outcome(kind("eval.py"), float(number), 600.0) for number in range(9)]
    prediction = predictor(learned(runs)).predict(kind("new.py"), 10.0)
    assert prediction is not None and (prediction.level, prediction.end_count) == (2, 9)
    assert prediction.p50 == pytest.approx(600.0, rel=0.01)


def test_shown_prediction_uses_no_end_of_another_tenant() -> None:
    learner = learned([Outcome(kind(tenant=2, user=2), float(number), 600.0) for number in range(9)])
    assert predictor(learner).predict(kind(), 10.0) is None
    assert predictor(learner).order_seconds(keys_of(kind()), 10.0, None) is not None


def test_early_failure_does_not_shorten_the_prediction_and_a_late_one_counts() -> None:
    runs = [Outcome(kind(), float(number), 3600.0 + number) for number in range(10)]
    early = learned([*runs, *[Outcome(kind(), 100.0 + number, 20.0, is_clean=False) for number in range(5)]])
    assert all(not end.is_observed for end in early.ends[keys_of(kind())[0]][-5:])
    late = learned([*runs, Outcome(kind(), 100.0, 3700.0, is_clean=False)])
    assert late.ends[keys_of(kind())[0]][-1].is_observed
    stopped = learned([*runs, Outcome(kind(), 100.0, 3700.0, is_clean=False, is_stopped=True)])
    assert not stopped.ends[keys_of(kind())[0]][-1].is_observed
    before, after = predictor(learned(runs)).predict(kind(), 200.0), predictor(early).predict(kind(), 200.0)
    assert before is not None and after is not None and after.p50 >= before.p50 * 0.999


def test_first_run_that_fails_or_is_stopped_is_only_a_lower_bound() -> None:
    others = [Outcome(kind("eval.py"), float(number), 600.0) for number in range(9)]
    for is_stopped, seconds, expected in ((False, 20.0, 600.0), (True, 20.0, 600.0), (True, 3000.0, 3000.0)):
        learner = learned([*others, Outcome(kind(), 20.0, seconds, is_clean=False, is_stopped=is_stopped)])
        prediction = predictor(learner).predict(kind(), 30.0)
        assert prediction is not None and prediction.p50 == pytest.approx(expected, rel=0.01)
        assert (prediction.level, prediction.end_count) == (2, 10)  # the source names the runs that were used


def test_command_that_always_fails_after_the_same_time_is_learned() -> None:
    others = [Outcome(kind("eval.py"), float(number), 60.0) for number in range(9)]
    failures = [Outcome(kind(), 100.0 + number, 7200.0 + number, is_clean=False) for number in range(4)]
    prediction = predictor(learned(others + failures)).predict(kind(), 200.0)
    assert prediction is not None and prediction.p50 == pytest.approx(7200.0, rel=0.1)


def test_recent_runs_of_a_command_count_more() -> None:
    """Unlike recent runs of all commands of a user, whose order tells nothing."""
    runs = [Outcome(kind(), float(number), 3600.0 if number < 20 else 7200.0) for number in range(37)]
    learner = learned(runs)
    medians = [exp(learner.summaries[key].median) for key in keys_of(kind())[:3]]
    assert medians == pytest.approx([7200.0, 7200.0, 3600.0])


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.floats(0, 1e7), st.booleans(), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.floats(0, 1e8),
    st.none() | st.floats(1, 1e6),
)
def test_prediction_is_ordered_and_between_ten_seconds_and_the_limit(
    rows: list[tuple[int, str, float, bool, bool]], elapsed: float, limit: float | None
) -> None:
    """A70."""
    learner = learned([
        Outcome(kind(name, user), float(number), seconds, clean, not clean and stopped)
        for number, (user, name, seconds, clean, stopped) in enumerate(rows)
    ])  # fmt: skip
    prediction = predictor(learner).predict(kind(rows[0][1], rows[0][0]), 1e6, limit)
    assert prediction is not None
    for shown in (prediction, given_elapsed(prediction, elapsed, limit)):
        assert min(10.0, limit or 10.0) <= shown.p10 <= shown.p50 <= shown.p90 <= (limit or MAX_SECONDS)
    seconds = predictor(learner).order_seconds(keys_of(kind(rows[0][1], rows[0][0])), 1e6, limit, elapsed)
    assert seconds is not None and min(10.0, limit or 10.0) <= seconds <= (limit or MAX_SECONDS)


@given(st.floats(1, 1e6), st.floats(1.01, 50), st.floats(0, 1e7), st.floats(0.01, 0.99))
def test_survivors_end_after_now_and_later_the_longer_they_have_run(
    p50: float, ratio: float, elapsed: float, part: float
) -> None:
    shape = shape_of(p50, p50 * ratio)
    now, later = survivors_quantile(p50, shape, elapsed, part), survivors_quantile(p50, shape, elapsed + 60.0, part)
    assert now >= elapsed
    assert later >= now * (1 - 1e-9)
    assert survivors_quantile(p50, shape, 0.0, 0.5) == pytest.approx(p50)


def test_job_that_outlives_its_prediction_is_expected_to_go_on_for_long() -> None:
    """A third as long again if the p90 is twice the median: the heavier the tail, the longer."""
    shape = shape_of(100.0, 200.0)
    assert survivors_quantile(100.0, shape, 1000.0, 0.5) == pytest.approx(1000.0 * 2 ** (log(2) / log(9)), rel=0.01)


def test_new_command_is_ordered_by_the_age_of_its_running_sibling() -> None:
    runs = [Outcome(kind("eval.py"), float(number), 600.0 + 50 * number) for number in range(9)]
    order = predictor(learned(runs)).order_seconds
    fresh, aged = order(keys_of(kind("new.py")), 10.0, None), order(keys_of(kind("new.py")), 10.0, None, 50_000.0)
    assert fresh is not None and aged is not None and fresh < 5_000.0 < 50_000.0 <= aged
    assert order(keys_of(kind("eval.py")), 10.0, None, 50_000.0) == order(keys_of(kind("eval.py")), 10.0, None)


@given(st.lists(st.floats(-1e3, 1e3), max_size=200))
def test_tracker_stays_ordered_and_bounded(scores: list[float]) -> None:
    tracker = Tracker()
    for value in scores:
        tracker = tracker.updated(value)
        assert -50.0 <= tracker.low < tracker.high <= 50.0


@given(st.lists(st.tuples(st.text("abcdef", min_size=1, max_size=8), st.floats(1, 1e6)), max_size=60))
def test_invented_names_change_no_prediction_of_a_user_who_repeats_a_command(invented: list[tuple[str, float]]) -> None:
    """A71: an attacker of the same tenant adds ends under any names; the prediction of a command with six runs moves by
    at most 2 %."""
    runs = [Outcome(kind(user=2), float(number), 3000.0 + 10 * number) for number in range(6)]
    runs += [Outcome(kind("eval.py", user=3), float(number), 500.0) for number in range(6)]
    attack = [
        Outcome(kind(f"{name}.py", user=1), 100.0 + number, seconds) for number, (name, seconds) in enumerate(invented)
    ]
    honest, attacked = predictor(learned(runs)), predictor(learned(runs + attack))
    before = honest.order_seconds(keys_of(kind(user=2)), 1000.0, None)
    after = attacked.order_seconds(keys_of(kind(user=2)), 1000.0, None)
    assert before is not None and after == pytest.approx(before, rel=0.02)


def test_memory_need_covers_what_was_too_little_even_of_a_single_run() -> None:
    clean, ran_out = End(0.0, log(20_000), True, 1), End(0.0, log(30_000), False, 1)
    assert need_of([clean]) is None
    need = need_of([ran_out])
    assert need is not None and need.advised_mb >= 30_000 * OUT_OF_MEMORY_FACTOR
    more = need_of([ran_out, clean, clean])
    assert more is not None and more.advised_mb >= need.advised_mb
