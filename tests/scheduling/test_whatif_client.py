"""The what-if process: its answers are the engine's, and neither it nor a question that
goes wrong, takes too long or comes with many others holds up anybody else."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpusched.installation import SERVER_ROOT
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.lib.web.request_threads import RequestThreads
from scheduling.cycle import snapshot
from scheduling.cycle.snapshot import CommitBasis
from scheduling.engine.model import Policy, Snapshot, Tenant
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.questions import Present
from scheduling.whatif import client, current
from scheduling.whatif.client import ask
from tests.engine.scenario import NOW, cluster, job, node, running_on
from tests.processes import is_alive
from tests.scheduling import whatif_questions
from tests.waiting import wait_for


def present() -> Present:
    """A node whose 8 GPUs are held, and three jobs that wait."""
    holders = [job(100 + n, gpus=2, minutes=30 + n) for n in range(4)]
    state = running_on(cluster(node(1), node(2, gpus=2), tenants=[Tenant(2, "t2")]), *holders)
    waiting = (job(1, gpus=4, minutes=10), job(2, gpus=8, age=50, minutes=20), job(3, gpus=64, tenant=2))
    return Present(replace(state, jobs=waiting), Policy(), NOW)


VIEW = present()


@pytest.fixture
def own_queue(monkeypatch):
    """An adviser of this test alone, which is gone soon after it."""
    monkeypatch.setattr(client, "_queue", client._QuestionQueue())
    monkeypatch.setattr(client, "IDLE_SECONDS", 0.5)


@pytest.fixture
def threads():
    views = RequestThreads(2)
    yield views
    views.shutdown()


def ask_as(name: str, question: Callable[..., Any], *args: Any) -> Any:
    log.act_as(name, "page")
    return ask(VIEW, question, *args)


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "args"),
    [
        *[(questions.outlook, (job_id, 0.5)) for job_id in (1, 2, 3)],
        (questions.reason, (2,)),
        (questions.queue, (0.3,)),
        (questions.simulated, ([job(9, gpus=2)], 0.5)),
        (questions.simulated, ([job(9, gpus=8)], 0.5)),
        (questions.simulated, ([job(9, gpus=8)], None)),
        (questions.changed, ((Tenant(1, "t", max_gpus=1), Tenant(2, "t2")), Policy(name="priority"))),
    ],
)
def test_answer_is_that_of_the_engine(question, args):
    assert ask(VIEW, question, *args) == question(present(), *args)


def test_answer_about_a_longer_limit_is_that_of_the_engine():
    options = {"is_small": True, "is_foreseen": True}
    result = ask(VIEW, questions.extend_effects, [103], 36_000, **options)
    assert result == questions.extend_effects(present(), [103], 36_000, **options) != (None, [])


def test_questions_about_one_view_share_cached_results(own_queue):
    """A view is sent once, and again after newer ones have displaced it."""
    other = [present() for _ in range(3)]
    first = [ask(VIEW, whatif_questions.identity) for _ in range(3)]
    assert len(set(first)) == 1
    assert [ask(future, questions.reason, 1).steps[0].reason.job_id for future in [*other, VIEW]] == [1] * 4
    assert ask(VIEW, questions.outlook, 1, 0.5) == questions.outlook(present(), 1, 0.5)


def test_engine_error_reaches_its_caller_and_no_other(own_queue):
    pid = ask(VIEW, whatif_questions.number)
    with pytest.raises(RuntimeError, match="of the engine"):
        ask(VIEW, whatif_questions.fails)
    with pytest.raises(Exception, match="pickle"):
        ask(VIEW, lambda here: 1)
    assert ask(VIEW, questions.queue, 0.5) and pid


# --- its life ---------------------------------------------------------------------------------------------------------


def test_killed_process_is_restarted(own_queue):
    first = ask(VIEW, whatif_questions.number)
    os.kill(first, signal.SIGKILL)
    second = ask(VIEW, whatif_questions.number)
    assert second != first
    assert not Path(f"/proc/{first}").exists()


def test_question_is_repeated_once_after_the_process_died_over_it(own_queue, tmp_path):
    assert ask(VIEW, whatif_questions.dies, str(tmp_path / "once"), 1) == "lived"
    with pytest.raises(Problem) as refused:
        ask(VIEW, whatif_questions.dies, str(tmp_path / "twice"), 2)
    assert (refused.value.status, refused.value.code) == (503, "unanswered")
    assert refused.value.next_step
    assert ask(VIEW, questions.queue, 0.5)


def test_slow_question_times_out(own_queue, tmp_path, monkeypatch):
    pid = ask(VIEW, whatif_questions.number)
    monkeypatch.setattr(client, "THINKING_SECONDS", 0.5)
    with pytest.raises(Problem) as refused:
        ask(VIEW, whatif_questions.think_forever, str(tmp_path / "pid"))
    assert (refused.value.status, refused.value.code) == (503, "unanswered")
    assert not Path(f"/proc/{pid}").exists()
    monkeypatch.setattr(client, "THINKING_SECONDS", 20.0)
    assert ask(VIEW, questions.queue, 0.5)


def test_process_ends_after_a_while_without_questions(own_queue):
    pid = ask(VIEW, whatif_questions.number)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    assert ask(VIEW, whatif_questions.number) != pid


@pytest.mark.parametrize("question", ["number", "never"])
def test_process_ends_with_the_web_process_in_any_case(question, tmp_path):
    """While it has nothing to do, and in the midst of a thought."""
    path = tmp_path / "pid"
    script = f"""
import threading
from pathlib import Path
import django
django.setup()
from tests.scheduling import whatif_questions
from tests.scheduling.test_whatif_client import VIEW, ask
if {question!r} == "never":
    ask(VIEW, whatif_questions.think_forever, {str(path)!r})
Path({str(path) + ".new"!r}).write_text(str(ask(VIEW, whatif_questions.number)))
Path({str(path) + ".new"!r}).rename({str(path)!r})
threading.Event().wait(60)
"""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "gpusched.settings"}
    web = subprocess.Popen([sys.executable, "-c", script], cwd=SERVER_ROOT, env=environment)
    try:
        wait_for(lambda: path.exists() or web.poll() is not None)
        pid = int(path.read_text())
        assert is_alive(pid)
    finally:
        web.kill()
        web.wait()
    wait_for(lambda: not is_alive(pid))


# --- many at once -----------------------------------------------------------------------------------------------------


def test_other_requests_continue_during_many_questions(own_queue, threads, tmp_path):
    """All threads for requests would be taken otherwise, and more; afterwards there are as many as before."""
    gate = tmp_path / "gate"
    pending = [threads.submit(ask_as, f"user{n % 4}", whatif_questions.wait_for_gate, str(gate)) for n in range(20)]
    wait_for(lambda: client.limiter.now.total() == 20)
    assert [threads.submit(lambda: "submitted").result(10) for _ in range(5)] == ["submitted"] * 5
    assert not any(future.done() for future in pending)
    gate.touch()
    assert [future.result(30) for future in pending] == ["waited"] * 20
    assert client.limiter.now.total() == 0
    assert threads.submit(lambda: "submitted").result(10) == "submitted"
    wait_for(lambda: len(threads._threads) == 2)


def test_callers_take_turns(own_queue, tmp_path):
    gate, said = tmp_path / "gate", tmp_path / "said"
    with ThreadPoolExecutor(10) as pool:
        pending = [pool.submit(ask_as, "first", whatif_questions.wait_for_gate, str(gate))]
        wait_for(lambda: client.limiter.now.total() == 1)
        for name in "aaaaabc":
            pending.append(pool.submit(ask_as, name, whatif_questions.record_and_answer, str(said), name))
            # All but the first, which is being answered.
            wait_for(lambda: sum(map(len, client._queue._lines.values())) == len(pending) - 1)
        gate.touch()
        for future in pending:
            future.result(20)
    assert said.read_text() == "abcaaaa"


def test_questions_of_a_caller_are_limited(own_queue, tmp_path, monkeypatch):
    monkeypatch.setattr(client.limiter, "max_each", 1)
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(2) as pool:
        pending = pool.submit(ask_as, "ada", whatif_questions.wait_for_gate, str(gate))
        wait_for(lambda: client.limiter.now["ada"] == 1)
        with pytest.raises(Problem) as refused:
            pool.submit(ask_as, "ada", whatif_questions.number).result(20)
        assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "too_many_questions", 5)
        other = pool.submit(ask_as, "bob", whatif_questions.number)
        gate.touch()
        assert pending.result(20) and other.result(20)


def test_question_of_a_disconnected_client_is_not_computed(own_queue, threads, tmp_path):
    gate, said = tmp_path / "gate", tmp_path / "said"
    pending = [threads.submit(ask_as, "ada", whatif_questions.wait_for_gate, str(gate))]
    for name in ("stays", "goes"):
        wait_for(lambda: client.limiter.now.total() == len(pending))
        pending.append(threads.submit(ask_as, name, whatif_questions.record_and_answer, str(said), name))
    wait_for(lambda: client.limiter.now.total() == len(pending))
    pending[2].cancel()
    gate.touch()
    assert isinstance(pending[2].exception(20), Problem)
    assert pending[1].result(20) == "stays"
    assert said.read_text() == "stays"


def test_question_without_a_turn_times_out(own_queue, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "WAITING_SECONDS", 0.2)
    gate, said = tmp_path / "gate", tmp_path / "said"
    pending = threads.submit(ask_as, "ada", whatif_questions.wait_for_gate, str(gate))
    wait_for(lambda: client.limiter.now.total() == 1)
    refused = threads.submit(ask_as, "bob", whatif_questions.record_and_answer, str(said), "bob").exception(20)
    assert isinstance(refused, Problem) and refused.status == 503
    gate.touch()
    assert pending.result(20) == "waited"  # its turn had come
    assert ask(VIEW, whatif_questions.number) and not said.exists()


def test_caller_that_arrives_during_questions_continues_with_their_answers(own_queue, tmp_path, monkeypatch):
    """Together with all who came meanwhile; and after some seconds where those others go on and on."""
    gates = [tmp_path / name for name in "abc"]
    with ThreadPoolExecutor(10) as pool:
        for seconds, count in ((20.0, 2), (0.0, 1)):
            monkeypatch.setattr(client, "ROUND_SECONDS", seconds)
            for gate in gates:
                gate.unlink(missing_ok=True)
            pending = [pool.submit(ask_as, "ada", whatif_questions.wait_for_gate, str(gate)) for gate in gates[:2]]
            wait_for(lambda: client.limiter.now["ada"] == 2)
            waiting = [pool.submit(client.wait_for_batch) for _ in range(3)]
            wait_for(lambda: client.limiter.now.total() == 5)
            for number, gate in enumerate(gates[:2], 1):
                assert not any(future.done() for future in waiting) or number > count
                gate.touch()
                pending[number - 1].result(20)
                for future in waiting if number == count else ():
                    future.result(20)
    client.wait_for_batch()


# --- the present ------------------------------------------------------------------------------------------------------


def test_caller_that_arrives_during_a_read_shares_the_next_one(monkeypatch):
    """Never a load that began earlier: a job submitted since might be missing."""
    begun, gate = threading.Semaphore(0), threading.Semaphore(0)
    reads = []

    def load(**options):
        begun.release()
        gate.acquire()
        reads.append(options)
        return Snapshot((), (), (), (), reserved_job_id=len(reads)), CommitBasis(NOW, {}, Policy(), ())

    callers: list[int] = []
    monkeypatch.setattr(current, "wait_for_batch", lambda: callers.append(1))
    monkeypatch.setattr(snapshot, "load", load)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(current.take_snapshot)
        begun.acquire()
        others = [pool.submit(current.take_snapshot) for _ in range(5)]
        wait_for(lambda: len(callers) == 6)
        gate.release(10)
        result = [future.result(20).snapshot.reserved_job_id for future in (first, *others)]
    assert result == [1, 2, 2, 2, 2, 2]
    assert current.take_snapshot().snapshot.reserved_job_id == 3
