"""Send questions to the what-if process (process.py) and wait for its answers.

It starts with the first question and ends after a minute without one, or with this process, whose pipe it reads.
Callers take turns, each with the oldest of their questions."""

import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpusched.installation import SERVER_ROOT
from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.log import actor
from gpusched.lib.limits import MAX_QUESTIONS, MAX_QUESTIONS_EACH
from gpusched.lib.web.request_threads import client_gone_check, yield_slot
from scheduling.engine.whatif.questions import Present
from scheduling.whatif import process

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

# Maximum time to compute an answer, and to wait for its turn.
THINKING_SECONDS, WAITING_SECONDS = 20.0, 30.0
ROUND_SECONDS, IDLE_SECONDS = 2.0, 60.0
# A request thread yields its slot when an answer takes longer than this.
QUICK_SECONDS = 0.1

limiter = ConcurrencyLimiter(
    MAX_QUESTIONS,
    MAX_QUESTIONS_EACH,
    code="too_many_questions",
    subject="questions are being asked",
    next_step="wait for their answers",
)


def ask(view: Present, question: Callable[Concatenate[Present, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `question(view, …)` returns, a function of the engine. 503 if it takes too long, or if the process
    ends over it twice; 429 if there are too many questions."""
    pending = _Question(view, (question, args, kwargs), client_gone_check())
    with limiter.slot(actor()):
        _queue.put(actor(), pending)
        wait([pending.answer], QUICK_SECONDS)
        if not pending.answer.done():
            with yield_slot():
                wait([pending.answer], WAITING_SECONDS)
                if pending.answer.cancel():
                    raise _unanswered(f"other questions took longer than {WAITING_SECONDS:g} s")
                wait([pending.answer])  # it is being computed, which has its own limit
        result: T = pending.answer.result()
        return result


def wait_for_batch() -> None:
    """Wait for earlier questions, at least a moment and not for all of a long queue. Callers that arrive meanwhile
    continue together and share a view, whose cached results serve all of them. 429 as in `ask`."""
    with limiter.slot(actor()):
        round = _queue.round
        if not _queue.wait_for_round(round, QUICK_SECONDS):
            with yield_slot():
                _queue.wait_for_round(round, WAITING_SECONDS)


def _unanswered(reason: str) -> Problem:
    return Problem(
        503, "unanswered", f"the answer could not be computed: {reason}", next_step="try again later", retry_after=5
    )


@dataclass(eq=False)
class _Question:
    """A question. `is_disconnected`: returns whether its client has gone."""

    view: Present
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    is_disconnected: Callable[[], bool]

    def __post_init__(self) -> None:
        self.answer: Future[Any] = Future()


class _QuestionQueue:
    """The queue of questions. A thread passes them on, one at a time, and ends after a while without any. `round`: a
    new number each time that all are answered, or that some seconds have passed."""

    def __init__(self) -> None:
        self.round, self._round_ends = 0, 0.0
        self._changed = threading.Condition()
        self._lines: dict[str, deque[_Question]] = {}  # by caller, in the order of their turns
        self._is_attended = self._is_busy = False

    def put(self, caller: str, question: _Question) -> None:
        with self._changed:
            if not (self._lines or self._is_busy):
                self._round_ends = time.monotonic() + ROUND_SECONDS
            self._lines.setdefault(caller, deque()).append(question)
            if self._is_attended:
                self._changed.notify_all()
            else:
                threading.Thread(target=self._attend, name="asking", daemon=True).start()
                self._is_attended = True

    def wait_for_round(self, round: int, seconds: float) -> bool:
        """Wait for the end of this round. Return True once it has ended, or no questions are left."""
        with self._changed:
            return self._changed.wait_for(lambda: self.round != round or not (self._lines or self._is_busy), seconds)

    def _attend(self) -> None:
        child: _Child | None = None
        while (question := self._next()) is not None:
            if question.answer.set_running_or_notify_cancel():
                child = _answer(child, question)
            self._is_done()
            del question
        if child is not None:
            child.end()

    def _is_done(self) -> None:
        with self._changed:
            self._is_busy = False
            if not self._lines or time.monotonic() > self._round_ends:
                self.round, self._round_ends = self.round + 1, time.monotonic() + ROUND_SECONDS
                self._changed.notify_all()

    def _next(self) -> _Question | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._lines, IDLE_SECONDS):
                self._is_attended = False
                return None
            caller = next(iter(self._lines))
            line = self._lines.pop(caller)
            question = line.popleft()
            if line:
                self._lines[caller] = line
            self._is_busy = True
            return question


def _answer(child: "_Child | None", question: _Question) -> "_Child | None":
    """Answer the question, or set its error. Return the process for the next question, or None to start a new one."""
    if question.is_disconnected():
        question.answer.set_exception(_unanswered("the client has gone"))
        return child
    for _ in range(2):
        try:
            child = child or _Child()
            is_answered, answer = child.ask(question)
        except TimeoutError:
            question.answer.set_exception(_unanswered(f"it took longer than {THINKING_SECONDS:g} s"))
            return None
        except (OSError, EOFError):
            logger.warning("the what-if process ended over a question")
            if child is not None:
                child.end()
            child = None
        except Exception as error:  # noqa: BLE001 the caller gets it, and other questions go on
            question.answer.set_exception(error)
            if child is not None:
                child.end()
            return None
        else:
            if is_answered:
                question.answer.set_result(answer)
            else:
                question.answer.set_exception(RuntimeError(answer))
            return child
    question.answer.set_exception(_unanswered("its process ended"))
    return None


class _Child:
    """A what-if process. It keeps the latest views, so that a view is sent once for several questions."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # It needs no packages, and starts in half the time without them.
            [sys.executable, "-E", "-S", "-m", process.__name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=SERVER_ROOT,
        )  # fmt: skip
        self._sent: dict[int, Present] = {}
        self._number = 0

    def ask(self, question: _Question) -> tuple[bool, Any]:
        """Return whether there is an answer, and it. Raise TimeoutError if it took too long, after killing the process,
        and EOFError or OSError if the process ended."""
        assert self._process.stdin and self._process.stdout
        is_over = threading.Event()

        def give_up() -> None:
            is_over.set()
            self._process.kill()

        timer = threading.Timer(THINKING_SECONDS, give_up)
        timer.start()
        try:
            self._process.stdin.write(process.dumps((*self._view_message(question.view), *question.call)))
            self._process.stdin.flush()
            answer: tuple[bool, Any] = process.load(self._process.stdout)
        except (OSError, EOFError):
            if not is_over.is_set():
                raise
            self.end()
            raise TimeoutError from None
        finally:
            timer.cancel()
        return answer

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        with suppress(OSError), self._process:  # closes the pipes and waits
            pass

    def _view_message(self, view: Present) -> tuple[int, tuple[Any, ...] | None]:
        """Return the number of this view, and the view itself if the process does not have it."""
        for number, sent in self._sent.items():
            if sent is view:
                return number, None
        self._number += 1
        self._sent.pop(self._number - process.MAX_VIEWS, None)
        self._sent[self._number] = view
        return self._number, (view.snapshot, view.policy, view.now)


_queue = _QuestionQueue()
