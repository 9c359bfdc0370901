"""Send questions to the what-if process (process.py) and wait for its answers.

It is started with the first question and ended when none has come for a minute; it ends with this process, however that
ends, as it reads from it. Callers take turns, each with the question of theirs that has waited longest."""

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
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.log import actor
from gpusched.lib.limits import MAX_QUESTIONS, MAX_QUESTIONS_EACH
from gpusched.lib.web.request_threads import client_gone_check, yield_slot
from scheduling.engine.whatif.questions import Present
from scheduling.whatif import process

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
P = ParamSpec("P")
T = TypeVar("T")

# One question may be thought about for so long; and wait for so long until its turn comes.
THINKING_SECONDS, WAITING_SECONDS = 20.0, 30.0
ROUND_SECONDS, IDLE_SECONDS = 2.0, 60.0
# A thread that handles a request lets others go on when an answer takes longer than this.
QUICK_SECONDS = 0.1

room = ConcurrencyLimiter(
    MAX_QUESTIONS,
    MAX_QUESTIONS_EACH,
    code="too_many_questions",
    subject="questions are being asked",
    next_step="wait for their answers",
)


def ask(here: Present, question: Callable[Concatenate[Present, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `question(here, …)` gives, a function of the engine. 503 if it takes too long, or the adviser ends over it
    twice; 429 where too many are asked."""
    mine = _Question(here, (question, args, kwargs), client_gone_check())
    with room.slot(actor()):
        _desk.put(actor(), mine)
        wait([mine.answer], QUICK_SECONDS)
        if not mine.answer.done():
            with yield_slot():
                wait([mine.answer], WAITING_SECONDS)
                if mine.answer.cancel():
                    raise _unanswered(f"other questions took longer than {WAITING_SECONDS:g} s")
                wait([mine.answer])  # it is being thought about, and that has its own end
        found: T = mine.answer.result()
        return found


def wait_for_batch() -> None:
    """Waits for questions that were asked before, a moment at least and not for all of a long line. Those who come
    meanwhile go on together, to share a present: what is worked out of it for one is there for the others. 429 as in
    `ask`."""
    with room.slot(actor()):
        round = _desk.round
        if not _desk.is_over(round, QUICK_SECONDS):
            with yield_slot():
                _desk.is_over(round, WAITING_SECONDS)


def _unanswered(why: str) -> Problem:
    return Problem(503, "unanswered", f"it could not be worked out: {why}", next_step="ask again later", retry_after=5)


@dataclass(eq=False)
class _Question:
    """`is_left`: tells whether whoever asked has gone."""

    here: Present
    asked: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    is_left: Callable[[], bool]

    def __post_init__(self) -> None:
        self.answer: Future[Any] = Future()


class _QuestionQueue:
    """Where questions wait. A thread hands them on, one at a time; it goes when there have been none for a while.
    `round`: another number each time that all are answered, or some seconds have gone."""

    def __init__(self) -> None:
        self.round, self._round_ends = 0, 0.0
        self._changed = threading.Condition()
        self._lines: dict[str, deque[_Question]] = {}  # of callers, in the order of their turns
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

    def is_over(self, round: int, seconds: float) -> bool:
        """Waits for the end of this round; True: it is over, or nobody asks anything."""
        with self._changed:
            return self._changed.wait_for(lambda: self.round != round or not (self._lines or self._is_busy), seconds)

    def _attend(self) -> None:
        child: _Child | None = None
        while (question := self._next()) is not None:
            if question.answer.set_running_or_notify_cancel():
                child = _answered(child, question)
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


def _answered(child: "_Child | None", question: _Question) -> "_Child | None":
    """The question gets its answer, or what went wrong. Gives the adviser for the next one, None: a new one."""
    if question.is_left():
        question.answer.set_exception(_unanswered("who asked has gone"))
        return child
    for _ in range(2):
        try:
            child = child or _Child()
            is_answered, answer = child.ask(question)
        except TimeoutError:
            question.answer.set_exception(_unanswered(f"it took longer than {THINKING_SECONDS:g} s"))
            return None
        except (OSError, EOFError):
            logger.warning("the adviser ended over a question")
            if child is not None:
                child.end()
            child = None
        except Exception as error:  # noqa: BLE001 what cannot be sent is the asker's, and others ask on
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
    question.answer.set_exception(_unanswered("the process that does it ended"))
    return None


class _Child:
    """An adviser. It keeps the presents that it was handed last: what several ask about is sent once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # It needs no packages, and starts in half of the time without.
            [sys.executable, "-E", "-S", "-m", process.__name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self._sent: dict[int, Present] = {}
        self._number = 0

    def ask(self, question: _Question) -> tuple[bool, Any]:
        """TimeoutError: it took too long, and the adviser is no more. EOFError, OSError: it ended meanwhile."""
        assert self._process.stdin and self._process.stdout
        is_over = threading.Event()

        def give_up() -> None:
            is_over.set()
            self._process.kill()

        timer = threading.Timer(THINKING_SECONDS, give_up)
        timer.start()
        try:
            self._process.stdin.write(process.dumps((*self._told(question.here), *question.asked)))
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
        """Nothing is left of it."""
        self._process.kill()
        with suppress(OSError), self._process:  # closes the pipes, and waits
            pass

    def _told(self, here: Present) -> tuple[int, tuple[Any, ...] | None]:
        """The number of this present, and the present itself if the adviser does not have it."""
        for number, sent in self._sent.items():
            if sent is here:
                return number, None
        self._number += 1
        self._sent.pop(self._number - process.KEPT, None)
        self._sent[self._number] = here
        return self._number, (here.snapshot, here.policy, here.now)


_desk = _QuestionQueue()
