"""The adviser's own side: what it keeps, what it makes of what it is sent, and that it lives on."""

import io

import pytest

from scheduling.engine.model import Policy
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.questions import Present
from scheduling.whatif import client, process
from tests.engine.scenario import NOW, cluster, job, node
from tests.scheduling import whatif_questions
from tests.waiting import assert_stays

VIEW = (cluster(node(1), jobs=[job(1, gpus=4)]), Policy(), NOW)


def test_process_keeps_only_the_latest_views():
    presents: dict[int, Present] = {}
    for number in range(1, 3 * process.MAX_VIEWS):
        assert process._answer(presents, number, VIEW, questions.queue, (0.5,), {})[0]
        assert len(presents) == min(number, process.MAX_VIEWS)
    for number in sorted(presents):
        assert process._answer(presents, number, None, questions.queue, (0.5,), {})[0]


@pytest.mark.parametrize(("present", "question"), [(VIEW, whatif_questions.fails), (None, questions.queue)])
def test_any_error_is_an_answer(present, question):
    """A question that fails, and one about a present that it does not have."""
    is_answered, error = process._answer({}, 1, present, question, (), {})
    assert not is_answered and "Traceback" in error


@pytest.mark.parametrize("remaining", [0, 1, 100, -1])
def test_truncated_input_is_the_end(remaining):
    content = process.dumps(VIEW)
    assert process.load(io.BytesIO(content)) == VIEW
    with pytest.raises(EOFError):
        process.load(io.BytesIO(content[:remaining]))


def test_answered_process_is_not_killed_later(monkeypatch):
    """Whatever the time until the next question."""
    given_up = []
    child = client._Child()
    try:
        monkeypatch.setattr(child._process, "kill", lambda: given_up.append(True))
        question = client._Question(Present(*VIEW), (whatif_questions.number, (), {}), lambda: False)
        assert child.ask(question)[0]
        monkeypatch.setattr(client, "THINKING_SECONDS", 0.2)
        assert child.ask(question)[0]
        assert_stays(lambda: not given_up, 0.4)
    finally:
        monkeypatch.undo()
        child.end()
