"""`gpusched watch`: what it observes, how it judges, what it books, and that it sends no text to the control plane."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpusched.client.config import Config
from gpusched.client.errors import GpuschedError, Invalid
from gpusched.watch import booking, judge
from gpusched.watch.booking import Booked, ControlPlane, NotSent, StartHasPassed
from gpusched.watch.rules import Reserve, Rule, load
from gpusched.watch.runner import Runner, Watched
from tests.client.commandline import ROOT, call
from tests.client.fakeserver import Answer, FakeServer
from tests.client.recorder import Recorder
from tests.waiting import wait_for

NOW = datetime(2030, 1, 31, 8, tzinfo=UTC)
SECRET = "patient-4711-diagnosis"
BOOKED = {"id": 5, "state": "planned"}
# Fields of a request that may hold text of the user, and the whole text that they hold.
FIXED = {"note": "watch: evaluation", "kind": "soft", "source": "agent"}


def rule(**fields: Any) -> Rule:
    return Rule(**{"name": "evaluation", "match": "epoch 9", "reserve": Reserve(gpus=2, in_minutes=10), **fields})


class Texts:
    """A source that shows what a test puts into it."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def observe(self) -> Sequence[str]:
        texts, self.new = self.new, []
        return texts


class Books:
    """Records bookings, after as many failures as a test wants."""

    default_tenant: str | None = "nlp"

    def __init__(self, *failures: Exception) -> None:
        self.requests: list[tuple[dict[str, Any], str]] = []
        self._failures = list(failures)

    def book(self, request: dict[str, Any], key: str) -> Booked:
        self.requests.append((request, key))
        if self._failures:
            raise self._failures.pop(0)
        return Booked(id=5, state="planned")


def runner(books: Books, asked: judge.Ask | None = None, **fields: Any) -> tuple[Runner, Texts, list[str]]:
    source, lines = Texts(), list[str]()
    return Runner([Watched(rule(**fields), source)], books, lines.append, asked), source, lines


def answer(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}]}


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: 1}, cooldown: 3}]", "cooldown"),
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: one}}]", "int"),
        ("rules: [{name: a, log: x, files: y, match: y, reserve: {gpus: 1}}]", "exactly one of"),
        ("rules: [{name: a, match: y, reserve: {gpus: 1}}]", "exactly one of"),
        ("rules: [{name: a, log: x, reserve: {gpus: 1}}]", "set `match`"),
        ("rules: [{name: a, log: x, ask: is it, reserve: {gpus: 1}}]", "needs an `endpoint`"),
        ("rules: [{name: a, log: x, match: '(', reserve: {gpus: 1}}]", "no regular expression"),
        ("rules: [{name: a, log: x, match: y, confidence: 2, reserve: {gpus: 1}}]", "from 0 to 1"),
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: 0}}]", "gpus of at least 1"),
        ("rules: [{name: a, log: x, match: y, cool_down_minutes: .inf, reserve: {gpus: 1}}]", "at most 1000000"),
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: 1, for_minutes: .nan}}]", "at most 1000000"),
        ("rules: [{name: a, log: x, match: 'y{99999999999}', reserve: {gpus: 1}}]", "no regular expression"),
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: 1, for_minutes: 0.5}}]", "between 1 and 44640"),
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: 1, for_minutes: 44641}}]", "between 1 and 44640"),
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: 1, in_minutes: 527041}}]", "at most 527040"),
        ("rules: [{name: a, log: x, match: y, reserve: {gpus: 1, node_selector: {a b: c}}}]", "node_selector"),
        ("rules: [{name: " + 200 * "a" + ", log: x, match: y, reserve: {gpus: 1}}]", "`name` is too long"),
        ("rules: " + 3000 * "[", "nested too deeply"),
        ("rules: [&r {name: a, log: x, match: y, reserve: {gpus: 1}}, *r]", "two rules"),
        ("rules: [", "rules.yaml"),
    ],
)
def test_wrong_rules_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(Invalid) as caught:
        load(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    result = call("http://127.0.0.1:9", "watch", str(path))
    assert result.exit_code == 2 and message in result.stderr


# --- what is booked ---------------------------------------------------------------------------------------------------


def test_match_books_once_and_then_the_rule_cools_down() -> None:
    books = Books()
    watching, source, lines = runner(books, confidence=0.7)
    source.new = ["epoch 1", f"epoch 9 {SECRET}", "epoch 9 again"]
    assert watching.step(NOW) == NOW + timedelta(seconds=5)
    [(request, key)] = books.requests
    assert request == {
        **FIXED, "gpus": 2, "tenant": "nlp", "node_selector": {}, "one_node": True, "confidence": 0.7,
        "from": "2030-01-31T08:10:00+00:00", "for_seconds": 3600,
    }  # fmt: skip
    assert key.startswith("watch-") and lines == ["evaluation: reservation 5 of 2 GPUs is planned"]
    source.new = ["epoch 9"]
    watching.step(NOW + timedelta(minutes=29))
    assert len(books.requests) == 1
    watching.step(NOW + timedelta(minutes=31))  # the line of the cool-down is not new any more
    assert len(books.requests) == 1
    source.new = ["epoch 9"]
    watching.step(NOW + timedelta(minutes=32))
    assert len(books.requests) == 2 and books.requests[1][1] != key


def test_booking_from_now_on_leaves_the_time_to_the_server() -> None:
    """Its clock may be ahead, and a repeated request arrives later: it refuses a start in the past."""
    books = Books(NotSent("busy"))
    watching, source, _ = runner(books, reserve=Reserve(gpus=1, for_minutes=30))
    source.new = ["epoch 9"]
    for minutes in (0, 5):
        watching.step(NOW + timedelta(minutes=minutes))
    assert [(request.get("from"), request["for_seconds"]) for request, _ in books.requests] == [(None, 1800)] * 2


def test_booking_that_cannot_be_sent_is_repeated_with_its_key_for_ten_minutes() -> None:
    books = Books(NotSent("busy"), NotSent("busy"))
    watching, source, lines = runner(books)
    source.new = ["epoch 9"]
    for minutes in (0, 1, 2, 3):
        watching.step(NOW + timedelta(minutes=minutes))
    assert len(books.requests) == 3 and len({key for _, key in books.requests}) == 1
    assert lines[-1].endswith("is planned")
    never = Books(*[NotSent("busy")] * 9)
    watching, source, lines = runner(never)
    source.new = ["epoch 9"]
    for minutes in (0, 9, 11, 12):
        watching.step(NOW + timedelta(minutes=minutes))
    assert len(never.requests) == 3 and "dropped" in lines[-1]


def test_booking_whose_start_has_passed_reserves_from_now_on() -> None:
    """The control plane was away for longer than `in_minutes`, or its clock is ahead."""
    books = Books(NotSent("busy"), StartHasPassed("from must not be in the past"))
    watching, source, lines = runner(books, reserve=Reserve(gpus=1, in_minutes=2, for_minutes=30))
    source.new = ["epoch 9"]
    for minutes in (0, 5):
        watching.step(NOW + timedelta(minutes=minutes))
    first, again, present = books.requests
    assert first == again and "from" not in present[0] and present[0]["for_seconds"] == 1800 and present[1] != first[1]
    assert lines[-1] == "evaluation: reservation 5 of 1 GPU is planned"
    never = Books(*[StartHasPassed("from must not be in the past")] * 3)
    watching, source, lines = runner(never)
    source.new = ["epoch 9"]
    watching.step(NOW)
    assert len(never.requests) == 2 and "not booked" in lines[-1]


@pytest.mark.parametrize(("field", "refusal"), [("from", StartHasPassed), ("gpus", GpuschedError)])
def test_refused_start_is_known_by_its_field(field: str, refusal: type[Exception]) -> None:
    problem = {"detail": "the request is invalid", "errors": [{"field": field, "message": "must not be in the past"}]}
    with Recorder(400, problem) as recorder:
        plane = ControlPlane(Config(url=recorder.address, token="t"))
        with pytest.raises(refusal):
            plane.book({"gpus": 1}, "key")


@pytest.mark.parametrize("answer", [b"<html>log in to the network</html>", b'{"id": 5, "sta'])
def test_booking_without_a_readable_answer_is_sent_again(server: FakeServer, answer: bytes) -> None:
    """A proxy answered in place of the control plane, or the connection broke, perhaps after it was booked."""
    server.on("POST", "/reservations", Answer(201, answer))
    plane = ControlPlane(Config(url=server.url, token="t"))
    with pytest.raises(NotSent, match="answered with something else"):
        plane.book({"gpus": 1}, "key")


def test_refused_booking_is_reported_and_cools_down() -> None:
    books = Books(GpuschedError("tenant 'nlp' is archived"))
    watching, source, lines = runner(books)
    source.new = ["epoch 9"]
    watching.step(NOW)
    source.new = ["epoch 9"]
    watching.step(NOW + timedelta(minutes=1))
    assert len(books.requests) == 1 and lines == ["evaluation: not booked: tenant 'nlp' is archived"]


def test_rule_goes_on_after_the_clock_was_set_back() -> None:
    books = Books()
    watching, source, _ = runner(books)
    for now in (NOW, NOW - timedelta(hours=8)):
        source.new = ["epoch 9"]
        assert watching.step(now) == now + timedelta(seconds=5)
    assert len(books.requests) == 2


def test_rule_goes_on_after_its_source_failed() -> None:
    class Broken(Texts):
        def observe(self) -> Sequence[str]:
            if self.new == ["fail"]:
                raise OSError("no permission")
            return super().observe()

    books, lines, source = Books(), list[str](), Broken()
    watching = Runner([Watched(rule(), source)], books, lines.append)
    source.new = ["fail"]
    watching.step(NOW)
    assert lines == ["evaluation: cannot observe: OSError: no permission"]
    source.new = ["epoch 9"]
    watching.step(NOW + timedelta(minutes=1))
    assert len(books.requests) == 1


# --- what leaves the machine ------------------------------------------------------------------------------------------


def test_no_byte_of_a_log_or_file_reaches_the_control_plane_and_no_third_address_is_called(tmp_path: Path) -> None:
    """A75: the real command, with every byte recorded that it sends: to the control plane, to the endpoint, and to a
    proxy that the environment names."""
    for name in ("train.log", "ckpt"):
        (tmp_path / name).touch() if name.endswith("log") else (tmp_path / name).mkdir()
    with Recorder(201, BOOKED) as plane, Recorder(200, answer("0.9")) as endpoint, Recorder(200, {}) as third:
        (tmp_path / "rules.yaml").write_text(f"""
            endpoint: {{url: "{endpoint.address}/v1", model: small}}
            rules:
              - {{name: evaluation, log: "{tmp_path}/train.log", match: epoch 9, ask: soon over, every_seconds: 0.1,
                 reserve: {{gpus: 1}}}}
              - {{name: checkpoint, files: "{tmp_path}/ckpt/*", match: pt, every_seconds: 0.1, reserve: {{gpus: 1}}}}
              - {{name: echo, command: [cat, "{tmp_path}/train.log"], match: epoch, every_seconds: 0.1,
                 reserve: {{gpus: 1}}}}
            """)
        proxies = {f"{kind}_proxy": third.address for kind in ("http", "https", "all")}
        config = {"GPUSCHED_URL": plane.address, "GPUSCHED_TOKEN": "u1.secret", "HOME": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "gpusched.cli.main", "watch", str(tmp_path / "rules.yaml")], cwd=ROOT, text=True,
            env={**os.environ, **config, **proxies, "NO_PROXY": "", "no_proxy": ""}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None and process.stderr.readline() == "watching 3 rules\n"
        with (tmp_path / "train.log").open("a") as file:
            file.write(f"epoch 9 {SECRET}\n")
        (tmp_path / "ckpt" / f"{SECRET}.pt").write_text(SECRET)
        try:
            wait_for(lambda: plane.received.count(b"POST") == 3, 60, "three bookings")
        finally:
            process.terminate()
            output, _ = process.communicate(timeout=30)
        assert process.returncode == 0 and output.count("reservation 5") == 3
    assert SECRET.encode() in endpoint.received and third.received == b""
    assert SECRET.encode() not in plane.received and b"epoch" not in plane.received
    assert str(tmp_path).encode() not in plane.received
    names = {"evaluation", "checkpoint", "echo"}
    for body in plane.bodies():
        assert set(body) == {*FIXED, "gpus", "node_selector", "one_node", "confidence", "for_seconds"}
        assert body["note"].removeprefix("watch: ") in names


def test_control_plane_follows_no_redirect_and_keeps_the_key() -> None:
    request = booking.body(rule(), 0.8, NOW, None)
    for status, error in ((307, GpuschedError), (503, NotSent), (429, NotSent), (422, GpuschedError)):
        with Recorder(status, {"detail": "no free GPUs"}) as plane:
            with pytest.raises(error) as caught:
                ControlPlane(Config(plane.address, "u1.secret")).book(request, "watch-1")
            assert plane.received.count(b"POST") == 1 and b"Idempotency-Key: watch-1" in plane.received.replace(
                b"idempotency-key", b"Idempotency-Key"
            )
            assert status != 422 or "no free GPUs" in str(caught.value)
    with pytest.raises(NotSent):
        ControlPlane(Config("http://127.0.0.1:9", "u1.secret")).book(request, "watch-1")


# --- a dry run --------------------------------------------------------------------------------------------------------


def test_dry_run_reports_what_yesterdays_log_would_have_booked(tmp_path: Path) -> None:
    log = tmp_path / "train.log.1"
    log.write_text(
        "2030-01-30 08:00:00,123Z epoch 8\n2030-01-30T09:00:00Z epoch 90\n2030-01-30T09:10:00Z epoch 91\n"
        "  epoch 92 on a line without a time\n[2030-01-30T09:31:00Z] epoch 93\n"
    )
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: evaluation, log: /nowhere, match: epoch 9, reserve: {gpus: 2, in_minutes: 10}}]")
    result = call("http://127.0.0.1:9", "watch", "--dry-run", "--log", str(log), str(rules))
    assert result.exit_code == 0, result.stderr
    first, second, total = result.stdout.splitlines()
    assert "line 2 at 2030-01-30 09:00:00 would reserve 2 GPU(s) from 09:10:00 for 60 min" in first
    assert "line 5 at 2030-01-30 09:31:00" in second and "2 reservation(s)" in total
    assert SECRET not in result.stdout
    missing = call("http://127.0.0.1:9", "watch", "--dry-run", str(rules))
    assert missing.exit_code == 2 and "/nowhere" in missing.stderr
    assert call("http://127.0.0.1:9", "watch", "--log", str(log), str(rules)).exit_code == 2


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59Z"])
def test_dry_run_goes_on_after_a_time_that_is_none(tmp_path: Path, at: str) -> None:
    """Some loggers write the zero time of their language; such a line has the time of the one before."""
    log, rules = tmp_path / "log", tmp_path / "rules.yaml"
    log.write_text(f"2030-01-30T09:00:00Z begin\n{at} epoch 1\n")
    rules.write_text(f"rules: [{{name: a, log: {log}, match: epoch, reserve: {{gpus: 1}}}}]")
    result = call("http://127.0.0.1:9", "watch", "--dry-run", str(rules))
    assert result.exit_code == 0, result.stderr
    assert "line 2 at 2030-01-30 09:00:00 would reserve" in result.stdout


def test_installed_command_of_the_unit_exists() -> None:
    unit = (ROOT / "deploy/gpusched-watch.service").read_text()
    assert "ExecStart=%h/.local/bin/gpusched watch %h/.config/gpusched/watch.yaml\n" in unit
