"""Streams without I/O: order, windows, turns, and frames of a hostile end (A69)."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.protocol import streams
from gpusched.protocol.streams import MAX_DATA_BYTES, WINDOW_BYTES, Endpoint, Kind, Open, Reason, Turns, Violation

TARGET = Open(key="7.1.0", port=8000)
# (which end, action, size): sizes around the limits of a frame and of the window.
SIZES = st.one_of(st.integers(1, 100), st.integers(MAX_DATA_BYTES - 2, MAX_DATA_BYTES + 2), st.just(WINDOW_BYTES))
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["write", "read", "carry", "carry", "end"]), SIZES), max_size=80
)


class Pair:
    """Both ends of an open stream, and the frames on the way in each direction."""

    def __init__(self) -> None:
        self.ends = (Endpoint(1, TARGET), Endpoint(1))
        self.on_the_way: tuple[deque[bytes], deque[bytes]] = (deque(), deque())  # to end 0, to end 1
        opening = streams.decode(self.ends[0].next_frame())
        assert opening[1] is Kind.OPEN and streams.read_open(opening[2]) == TARGET
        self.ends[1].accept()
        self.carry_all()

    def carry(self, end: int) -> bool:
        """Let an end send one frame, and the other receive one."""
        other, moved = 1 - end, False
        if self.ends[end].has_frame:
            self.on_the_way[other].append(self.ends[end].next_frame())
            moved = True
        if self.on_the_way[other]:
            _, kind, payload = streams.decode(self.on_the_way[other].popleft())
            self.ends[other].receive(kind, payload)
            moved = True
        return moved

    def carry_all(self) -> None:
        while self.carry(0) | self.carry(1):
            pass

    def bytes_towards(self, end: int) -> int:
        """Return the bytes in transit to an end, and those that wait there unread."""
        return sum(len(frame) - 5 for frame in self.on_the_way[end] if frame[4] == Kind.DATA) + self.ends[end].available


def piece(number: int, size: int) -> bytes:
    return bytes([number % 251]) * size


@settings(deadline=None)
@given(STEPS)
def test_bytes_arrive_in_order_and_never_more_than_the_window_is_on_the_way(steps: list[tuple[int, str, int]]) -> None:
    """A69."""
    pair = Pair()
    written, received = (bytearray(), bytearray()), (bytearray(), bytearray())
    for number, (end, action, size) in enumerate(steps):
        mine = pair.ends[end]
        if action == "write" and mine.room:
            data = piece(number, min(size, mine.room))
            mine.write(data)
            written[end].extend(data)
        elif action == "read":
            received[end].extend(mine.read(size))
        elif action == "carry":
            pair.carry(end)
        elif action == "end":
            mine.end()
        for side in (0, 1):
            assert pair.bytes_towards(side) <= WINDOW_BYTES
            assert pair.ends[side].room <= WINDOW_BYTES
    for end in (0, 1):
        pair.ends[end].end()
    for _ in range(len(steps) + 2):
        pair.carry_all()
        for end in (0, 1):
            received[end].extend(pair.ends[end].read(WINDOW_BYTES))
    assert (received[0], received[1]) == (written[1], written[0])
    for each in pair.ends:
        assert each.is_over and each.is_at_end and each.over is None and not each.has_frame


def test_end_of_one_direction_leaves_the_other_open() -> None:
    """A69: a request whose client has finished still gets its answer."""
    pair = Pair()
    pair.ends[0].write(b"request")
    pair.ends[0].end()
    pair.carry_all()
    assert pair.ends[1].read(100) == b"request" and pair.ends[1].is_at_end
    assert pair.ends[0].room == 0 and not pair.ends[0].is_over
    pair.ends[1].write(b"answer")
    pair.carry_all()
    assert pair.ends[0].read(100) == b"answer" and not pair.ends[0].is_at_end


def test_reader_that_stops_stops_its_writer_and_a_read_lets_it_continue() -> None:
    """A69."""
    pair = Pair()
    while pair.ends[0].room:
        pair.ends[0].write(bytes(min(pair.ends[0].room, 100_000)))
        pair.carry_all()
    assert pair.ends[1].available == WINDOW_BYTES and not pair.ends[0].has_frame
    assert len(pair.ends[1].read(streams.CREDIT_BYTES)) == streams.CREDIT_BYTES
    pair.carry_all()
    assert pair.ends[0].room == streams.CREDIT_BYTES


def test_reset_reaches_the_other_end_after_what_was_sent_and_before_what_waits() -> None:
    """A69."""
    pair = Pair()
    pair.ends[0].write(b"sent")
    pair.carry_all()
    pair.ends[0].write(b"waiting")
    pair.ends[0].reset(Reason.RANK_ENDED, "the rank ended")
    pair.carry_all()
    assert pair.ends[1].over is not None and pair.ends[1].over.reason == Reason.RANK_ENDED
    assert pair.ends[1].read(100) == b"sent" and not pair.ends[1].has_frame and pair.ends[1].room == 0
    pair.ends[1].receive(Kind.DATA, b"late")  # it crossed the reset
    assert pair.ends[1].available == 0


def test_streams_send_in_turns() -> None:
    """A69: a stream with much to send does not delay another one by more than a frame."""
    turns = Turns()
    busy, quiet = Pair().ends[0], Endpoint(2, TARGET)
    busy.write(bytes(WINDOW_BYTES))
    turns.add(busy)
    assert turns.next_frame()[4] == Kind.DATA
    turns.add(quiet)
    kinds = [turns.next_frame()[4], turns.next_frame()[4]]
    assert sorted(kinds) == [Kind.OPEN, Kind.DATA]
    turns.remove(busy)
    assert not turns
    with pytest.raises(IndexError):
        turns.next_frame()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.DATA, b""),
        (Kind.DATA, bytes(MAX_DATA_BYTES + 1)),
        (Kind.CREDIT, b"\0\0\0"),
        (Kind.CREDIT, b"\0\0\0\1"),
        (Kind.CREDIT, b"\xff\xff\xff\xff"),
        (Kind.OPEN, b"{}"),
        (Kind.OPENED, b""),
        (Kind.RESET, b"{"),
        (Kind.RESET, b'{"reason": "\xff"}'),
    ],
)
def test_hostile_frame_is_a_violation(kind: Kind, payload: bytes) -> None:
    """A69."""
    with pytest.raises(Violation):
        Pair().ends[0].receive(kind, payload)


def test_data_beyond_the_credit_or_after_the_end_is_a_violation() -> None:
    """A69: so no end makes the other keep more than its window."""
    end = Pair().ends[0]
    for _ in range(WINDOW_BYTES // MAX_DATA_BYTES):
        end.receive(Kind.DATA, bytes(MAX_DATA_BYTES))
    with pytest.raises(Violation):
        end.receive(Kind.DATA, b"x")
    ended = Pair().ends[0]
    ended.receive(Kind.END, b"")
    for kind in (Kind.DATA, Kind.END):
        with pytest.raises(Violation):
            ended.receive(kind, b"x")
    for kind in (Kind.DATA, Kind.END, Kind.CREDIT):
        with pytest.raises(Violation):
            Endpoint(1).receive(kind, b"\0\0\0\1")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_frame_or_a_violation(data: bytes) -> None:
    """A69."""
    try:
        stream_id, kind, payload = streams.decode(data)
        assert streams.encode(stream_id, kind, payload) == data
        assert streams.decode(streams.renumbered(data, 77)) == (77, kind, payload)
        if kind is Kind.OPEN:
            streams.read_open(payload)
    except Violation:
        pass


@pytest.mark.parametrize(
    "payload", [b'{"key":"1.1.0"}', b'{"key":"1.1.0","port":1,"socket":"a"}', b"[]", b'{"port":1}']
)
def test_open_needs_exactly_one_target(payload: bytes) -> None:
    with pytest.raises(Violation):
        streams.read_open(payload)
