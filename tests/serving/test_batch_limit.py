"""How batches shrink and grow after those that ran out of memory."""

from serving.batching.batch_limit import RETRY_SECONDS, BatchLimit


def grown(limit, times, now=1.0):
    for _ in range(times):
        limit.record_success(limit.below(8), 8, now)
    return limit.below(8)


def test_batch_that_ran_out_of_memory_halves_the_next():
    limit = BatchLimit()
    assert (limit.below(8), limit.is_below(8)) == (8, False)
    limit.record_out_of_memory(8, 0.0)
    assert (limit.below(8), limit.is_below(8)) == (4, True)


def test_full_batches_that_fit_raise_the_limit_below_the_size_that_failed():
    limit = BatchLimit()
    limit.record_out_of_memory(8, 0.0)
    assert grown(limit, 1) == 5
    assert grown(limit, 20) == 7
    limit.record_out_of_memory(6, 2.0)
    assert grown(limit, 20, now=3.0) == 5


def test_small_batches_do_not_raise_the_limit():
    limit = BatchLimit()
    limit.record_out_of_memory(8, 0.0)
    for _ in range(20):
        limit.record_success(1, 8, 1.0)
    assert limit.below(8) == 4


def test_size_that_failed_is_tried_again_after_its_time():
    limit = BatchLimit()
    limit.record_out_of_memory(8, 0.0)
    grown(limit, 20)
    assert grown(limit, 1, now=RETRY_SECONDS + 1) == 8
    assert not limit.is_below(8)


def test_single_request_that_runs_out_of_memory_does_not_shrink_the_batches_of_others():
    limit = BatchLimit()
    limit.record_out_of_memory(1, 0.0)
    assert limit.below(8) == 8
