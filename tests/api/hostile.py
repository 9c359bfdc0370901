"""Hostile requests to every write of the API, and the required answers (A55); a part of them in tests/api,
much in tests/e2e."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connection, transaction
from hypothesis import strategies as st

from gpusched.lib.db.sql import query
from tests.api.mutations import NO_JSON, encoded, mutated
from tests.api.operations import Operation, Stage, contents, operations, writes, writes_of_transaction

SHAPE = {"type", "title", "status", "detail", "code", "next_step", "request_id", "errors", "error"}
NAMES = ("\x00", "..", "../jobs", "9" * 18, "9" * 19, "-1", "💥", "a" * 300, "%", "%s", " ", "\u202e", "nlp/quota", "'")
# As a header has them: any character of Latin-1 but the ends of lines.
_HEADER = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40)
HEADERS: dict[str, st.SearchStrategy[str]] = {
    "If-Match": st.one_of(_HEADER, st.sampled_from(["*", '"1"', 'W/"1"', '"1", "2"', "9" * 400, "\x00", "²"])),
    "If-None-Match": _HEADER,
    "Idempotency-Key": st.one_of(_HEADER, st.sampled_from(["", "k", "k" * 255, "k" * 256, "\x00"])),
    "Dry-Run": st.sampled_from(["true", "false", "?", "\x00"]),
    "Range": st.one_of(_HEADER, st.sampled_from(["bytes=0-1", "bytes=5-1", "bytes=-1", "bytes=0-" + "9" * 40])),
    "Content-Encoding": st.sampled_from(["gzip", "br", "\x00"]),
    "Accept": st.sampled_from(["*/*", "application/json", "image/png", "x", ";;;", "application/json;q=nan"]),
    "Accept-Language": _HEADER,
    "X-Request-Id": st.one_of(_HEADER, st.just("x" * 5000)),
    "X-Forwarded-For": _HEADER,
    "X-HTTP-Method-Override": st.sampled_from(["DELETE", "GET"]),
}
_VALUES = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.sampled_from(["true", "false", "maybe", "WzFd", "W10", "WyJ4Il0", "WzFlNDAwXQ", "9" * 400, "\x00", "nan", "1e400", "-1",
                     "2030-01-01", "9999-12-31T23:59:59Z", "0001-01-01", "2030-01-01T00:00:00+99:00"]),
)  # fmt: skip


@dataclass(frozen=True)
class Sent:
    """`must`: the status that it has to get; None: any that is documented. `is_elsewhere`: under a name that may lead
    to another address, or to none."""

    raw: bytes
    kind: str = "application/json"
    more: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    must: int | None = None
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_elsewhere(self) -> bool:
        return bool(self.ids)


def catalogue(stage: Stage, operation: Operation, chosen: int | None = None) -> Iterator[Sent]:
    """Each kind of attack on one write. `chosen`: of many alike only this one, by number."""
    valid = stage.body(operation)
    good = encoded(valid)

    def some(these: tuple[Any, ...]) -> tuple[Any, ...]:
        return these if chosen is None else (these[chosen % len(these)],)

    yield from (Sent(raw, must=400) for raw in some(NO_JSON))
    for raw in (
        good[:-1] or b"{",
        b"[" + good + b"]",
        encoded({**valid, "no_such_field": 1}),
        encoded({**valid, "\x00": 1}),
    ):
        yield Sent(raw, must=400)
    yield Sent(encoded({**valid, "\ud800": "\udfff"}), must=400)
    for kind in some(("text/xml", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x", "\x00")):
        yield Sent(good, kind, must=415)
    for name in some(tuple(operation.fields)) if operation.fields else ():
        yield Sent(encoded({**valid, name: {"\x00": [[]]}}))
    for more in some(("?no_such=1", "?dry_run=maybe", "?%00=%00", "?dry_run=")):
        yield Sent(good, more=more, must=None if more == "?dry_run=" else 400)
    for headers in some(({"If-Match": "x"}, {"Range": "bytes=5-1"}, {"Dry-Run": "?"}, {"If-Match": '"99999999999"'})):
        yield Sent(good, headers=headers)
    if "Idempotency-Key" in operation.parameters("header"):
        yield Sent(good, headers={"Idempotency-Key": "k" * 256}, must=400)
    for name in operation.parameters("path"):
        yield from (Sent(good, ids={name: value}) for value in some(NAMES))


def try_catalogue(stage: Stage, *, share: int, is_whole: bool) -> int:
    """On each write of the API; gives how many requests there were. `share`: of the attacks on one write only each so
    many-th, another one for the next write; `is_whole`: of many alike not only one."""
    previous, number = contents(), 0
    for n, operation in enumerate(writes()):
        for sent in islice(catalogue(stage, operation, None if is_whole else n), n % share, None, share):
            number += 1
            send(stage, (operation, sent), previous)
    return number


def put_into_every_field(stage: Stage, value: Any) -> None:
    """One after the other, in each write: the field that forgets to look is found."""
    previous = contents()
    for operation in writes():
        if not operation.path.endswith("/simulate"):  # the same fields as a submit, and slow
            for name in operation.fields:
                send(stage, (operation, Sent(encoded({**stage.body(operation), name: value}))), previous)


@st.composite
def requests(draw: st.DrawFn, stage: Stage) -> tuple[Operation, Sent]:
    """Any write with anything wrong: its body, its query, its headers, the names in its address."""
    operation = draw(st.sampled_from(writes()))
    full = {name: None for name in operation.fields} if draw(st.booleans()) else {}
    raw = draw(st.one_of(mutated({**full, **stage.body(operation)}), st.sampled_from(NO_JSON)))
    names = sorted(operation.parameters("query") | {"dry_run", "no_such"})
    values = draw(st.dictionaries(st.sampled_from(names), _VALUES, max_size=2)) if draw(st.booleans()) else {}
    chosen = draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=3, unique=True))
    headers = {name: draw(HEADERS[name]) for name in chosen}
    odd = sorted(operation.parameters("path")) if draw(st.integers(0, 5)) == 0 else []
    ids = {name: draw(st.one_of(st.sampled_from(NAMES), st.text(max_size=20))) for name in odd}
    return operation, Sent(raw, more=_query(values), headers=headers, ids=ids)


@st.composite
def questions(draw: st.DrawFn, stage: Stage) -> tuple[Operation, Sent]:
    """Any read, asked for anything; also with forged cursors."""
    operation = draw(st.sampled_from([operation for operation in operations() if not operation.is_write]))
    names = sorted(operation.parameters("query") - {"wait"} | {"no_such"})
    values = draw(st.dictionaries(st.sampled_from(names), _VALUES, max_size=3))
    chosen = draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=2, unique=True))
    return operation, Sent(b"", more=_query(values), headers={name: draw(HEADERS[name]) for name in chosen})


def _query(values: Mapping[str, str]) -> str:
    # Half a character cannot be sent in an address.
    return "?" + urlencode(values, errors="replace") if values else ""


def send(stage: Stage, requested: tuple[Operation, Sent], previous: dict[str, str]) -> None:
    """Send it, and roll back whatever it has done. `previous`: the contents of the database."""
    operation, sent = requested
    ids = {
        **stage.ids(operation),
        **{name: quote(value, safe="", errors="replace") for name, value in sent.ids.items()},
    }
    headers = {name.replace("-", "_"): value for name, value in sent.headers.items()}
    with transaction.atomic():
        written = writes_of_transaction()
        answer = stage.ask(
            operation.method, operation.path.format(**ids) + sent.more, sent.raw, kind=sent.kind, **headers
        )
        message = (operation.name, sent, answer.status_code, answer.content[:300])
        assert answer.status_code in operation.statuses | ({400, 404, 405} if sent.is_elsewhere else set()), message
        assert sent.must in (None, answer.status_code), message
        if answer.status_code == 401 or operation.path.endswith(("/login", "/me/password")):  # a guess is counted
            previous = {name: mark for name, mark in previous.items() if name != "tenants_loginattempts"}
        # No worker runs here, so the server is no longer ready some seconds after the cycle of the stage.
        if not (answer.status_code == 503 and operation.path.endswith("/ready")):
            check(answer, previous if writes_of_transaction() != written else None)
        transaction.set_rollback(True)


def check(answer: Any, previous: Mapping[str, str] | None = None) -> Any:
    """A refusal of one shape that has written nothing, or else done, and done wholly."""
    assert answer.status_code < 500, answer.content
    if answer.status_code >= 400:
        assert answer["Content-Type"] == "application/problem+json", answer.content[:200]
        told = answer.json()
        assert set(told) == SHAPE, told
        assert (told["status"], told["request_id"]) == (answer.status_code, answer["X-Request-Id"])
        assert told["title"] and told["detail"] and told["code"] and told["error"] == told["detail"], told
        assert told["next_step"], told
    if previous is not None and answer.status_code >= 400:
        now = contents()
        assert {name for name in previous if previous[name] != now[name]} == set(), answer.content
    elif previous is not None:
        is_whole()
    return answer


def is_whole() -> None:
    """Check the invariants after any request."""
    assert not query(_BROKEN)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


# Devices that are held twice or say that they are and are not, jobs that run nowhere, and what ended and still holds
# something.
_BROKEN = """
    SELECT 'device' AS what, device_id AS id FROM nodes_allocation GROUP BY device_id
    HAVING count(*) FILTER (WHERE memory_mb IS NULL) > 0 AND count(*) > 1
    UNION ALL
    SELECT 'job', j.id FROM jobs_job j WHERE j.state IN ('scheduled', 'running', 'stopping') AND NOT EXISTS
           (SELECT 1 FROM nodes_assignment a JOIN jobs_attempt t ON t.id = a.attempt_id
             WHERE a.job_id = j.id AND t.number = j.attempt AND t.ended_at IS NULL)
    UNION ALL
    SELECT 'allocation', l.id FROM nodes_allocation l JOIN nodes_assignment a ON a.id = l.assignment_id
      JOIN jobs_job j ON j.id = a.job_id WHERE j.state NOT IN ('scheduled', 'running', 'stopping')
    UNION ALL
    SELECT 'attempt', t.id FROM jobs_attempt t JOIN jobs_job j ON j.id = t.job_id
     WHERE t.ended_at IS NULL AND j.state NOT IN ('scheduled', 'running', 'stopping')
    UNION ALL
    SELECT 'held', d.id FROM nodes_device d WHERE d.held_whole <>
           (SELECT count(*) FROM nodes_allocation a WHERE a.device_id = d.id AND a.memory_mb IS NULL)
"""
