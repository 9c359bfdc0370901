"""The endpoint of `gpusched watch`: how it judges texts, and what happens to them while it does not answer."""

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.client.errors import Invalid
from gpusched.watch.judge import EndpointFailed, Llm, NoConfidence
from gpusched.watch.rules import Endpoint
from gpusched.watch.runner import MAX_ASKED
from tests.client.recorder import Recorder
from tests.client.test_watch import NOW, Books, answer, runner


def llm(recorder: Recorder, **environ: str) -> Llm:
    return Llm(Endpoint(url=f"{recorder.address}/v1", model="small"), environ)


@pytest.mark.parametrize(("text", "confidence"), [("0.85", 0.85), ("1", 1.0), ("Confidence: .5.", 0.5), ("0", 0.0)])
def test_endpoint_judges_with_a_confidence(text: str, confidence: float) -> None:
    with Recorder(200, answer(text)) as recorder:
        assert llm(recorder, OPENAI_API_KEY="k").ask("soon over?", "epoch 99/100") == confidence
        [body] = recorder.bodies()
    assert b"Bearer k" in recorder.received and body["model"] == "small"
    assert "epoch 99/100" in body["messages"][1]["content"]


@pytest.mark.parametrize(
    ("status", "body"), [(200, answer("yes")), (200, answer("7")), (200, {}), (500, {}), (302, {}), (200, "text")]
)
def test_endpoint_without_an_answer_books_nothing(status: int, body: Any) -> None:
    with Recorder(status, body) as recorder:
        asked = llm(recorder)
        with pytest.raises(EndpointFailed):
            asked.ask("?", "text")
        books = Books()
        watching, source, lines = runner(books, asked.ask, match="", ask="soon over?")
        source.new = ["epoch 9"]
        watching.step(NOW)
    assert books.requests == [] and len(lines) == 1


def test_text_waits_ten_minutes_for_an_endpoint_that_does_not_answer() -> None:
    asked: list[str] = []

    def ask(question: str, text: str) -> float:
        asked.append(text)
        if len(asked) < 3:
            raise EndpointFailed("refused")
        return 0.9

    books = Books()
    watching, source, _ = runner(books, ask, match="", ask="soon over?")
    for minutes, new in ((0, ["one"]), (1, ["two"]), (2, [])):
        source.new = new
        watching.step(NOW + timedelta(minutes=minutes))
    assert asked == ["one", "one", "one"] and len(books.requests) == 1
    watching, source, _ = runner(books, ask, match="", ask="soon over?")
    asked.clear()
    source.new = ["old"]
    for minutes in (0, 11):
        watching.step(NOW + timedelta(minutes=minutes))
    assert asked == ["old"] and len(books.requests) == 1


def test_answer_without_a_confidence_does_not_hold_up_the_next_text() -> None:
    def ask(question: str, text: str) -> float:
        if text == "epoch 9 of what?":
            raise NoConfidence("no number")
        return 0.9

    books = Books()
    watching, source, lines = runner(books, ask, ask="soon over?")
    source.new = ["epoch 9 of what?", "epoch 9"]
    watching.step(NOW)
    assert len(books.requests) == 1 and lines[0] == "evaluation: no number"


def test_expression_comes_before_the_endpoint_and_low_confidence_books_nothing() -> None:
    asked: list[str] = []

    def ask(question: str, text: str) -> float:
        asked.append(text)
        return 0.4 if "maybe" in text else 0.9

    books = Books()
    watching, source, _ = runner(books, ask, ask="soon over?")
    source.new = ["epoch 1", "epoch 9 maybe"]
    watching.step(NOW)
    assert asked == ["epoch 9 maybe"] and books.requests == []
    asked.clear()
    source.new = ["epoch 9 maybe"] * 1000
    watching.step(NOW)
    assert asked == []  # at its pace
    watching.step(NOW + timedelta(seconds=30))
    assert len(asked) == MAX_ASKED and books.requests == []
    source.new = ["epoch 9"]
    watching.step(NOW + timedelta(minutes=1))
    assert books.requests[0][0]["confidence"] == 0.9


def test_key_comes_from_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = SimpleNamespace(get_password=lambda service, user: "k" if (service, user) == ("llm", "ada") else None)
    monkeypatch.setitem(sys.modules, "keyring", stored)
    with Recorder(200, answer("1")) as recorder:
        url = f"{recorder.address}/v1"
        Llm(Endpoint(url=url, model="small", key_keyring="llm/ada"), {}).ask("?", "text")
        assert b"Bearer k\r\n" in recorder.received
        with pytest.raises(Invalid, match="no password"):
            Llm(Endpoint(url=url, model="small", key_keyring="llm/bob"), {})
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(Invalid, match="needs the library keyring"):
        Llm(Endpoint(url="http://x/v1", model="small", key_keyring="llm/ada"), {})
