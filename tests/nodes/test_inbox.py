"""Messages of agents that wait while the database is away: bounded, and no report is dropped."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpusched.protocol.agent_messages import Desired, Ended, NodeFacts, Reading, Report, Started, Sync
from nodes.agents.inbox import MAX_PER_NODE, Inbox, QueuedMessage

FACTS = NodeFacts(hostname="h", boot_id="b", agent_version="0", cpu_cores=1, memory_mb=1)
AT = "2030-01-01T00:00:00Z"


class Agent:
    def __init__(self, node_id: int = 1) -> None:
        self.node_id = node_id


def sync(seq: int, **more: Any) -> Sync:
    return Sync(seq=seq, at=AT, boot_id="b", readings=[Reading(uuid="GPU-1")], **more)


def ended(key: str) -> Ended:
    return Ended(key=key, at=AT, reason="exited")


def names(messages: list[QueuedMessage[Agent]]) -> set[tuple[type[Report], str]]:
    return {(type(report), report.key) for waiting in messages for report in waiting.message.reports}


def test_messages_are_popped_in_the_order_of_their_nodes_with_all_of_a_node():
    inbox, first, second = Inbox[Agent](), Agent(1), Agent(2)
    for seq, agent in enumerate((first, second, first)):
        assert inbox.put(float(seq), agent, sync(seq))
    assert inbox.oldest_at == 0.0
    assert [waiting.message.seq for waiting in inbox.pop(1)] == [0, 2]
    assert inbox.oldest_at == 1.0
    assert [waiting.message.seq for waiting in inbox.pop(9)] == [1]
    assert len(inbox) == 0


def test_readings_are_dropped_first_and_facts_are_retained():
    inbox, agent = Inbox[Agent](), Agent()
    assert inbox.put(0.0, agent, sync(0, facts=FACTS, reports=[Started(key="1.1.0", at=AT, pid=1)]))
    for seq in range(1, 10_000):
        assert inbox.put(float(seq), agent, sync(seq))
        assert len(inbox) <= MAX_PER_NODE
    messages = inbox.pop(99)
    assert messages[0].message.readings == []
    assert messages[0].since == 0.0, "it waits since the oldest that it stands for"
    assert names(messages) == {(Started, "1.1.0")}
    assert [waiting.message.facts for waiting in messages if waiting.message.facts] == [FACTS]
    assert messages[-1].message == sync(9_999)


def test_message_is_refused_if_it_would_displace_a_report():
    inbox, agent = Inbox[Agent](), Agent()
    messages = [inbox.put(0.0, agent, sync(seq, reports=[ended(f"{seq}.1.0")])) for seq in range(MAX_PER_NODE + 2)]
    assert messages == [True] * MAX_PER_NODE + [False] * 2
    assert names(inbox.pop(99)) == {(Ended, f"{seq}.1.0") for seq in range(MAX_PER_NODE)}


def test_ranks_that_start_and_end_at_once_do_not_fill_the_queue():
    """Else the server closes the connection of an agent with ten short jobs a second."""
    inbox, agent = Inbox[Agent](), Agent()
    for seq in range(100):
        ends: list[Report] = [ended(f"{n}.1.0") for n in range(seq)]
        assert inbox.put(0.0, agent, sync(seq, reports=[*ends, Started(key=f"{seq}.1.0", at=AT, pid=1)]))
    assert len(inbox) <= MAX_PER_NODE
    assert names(inbox.pop(99)) >= {(Ended, f"{n}.1.0") for n in range(99)} | {(Started, "99.1.0")}


def test_acknowledged_reports_do_not_fill_the_queue():
    inbox, agent = Inbox[Agent](), Agent()
    inbox.put(0.0, agent, sync(0, reports=[ended("0.1.0")]))
    for seq in range(1, 100):
        assert inbox.put(0.0, agent, sync(seq, reports=[ended(f"{seq}.1.0")]))
        inbox.acknowledge(agent.node_id, Desired(acknowledged=[f"{seq}.1.0"]))
    assert names(inbox.pop(99)) >= {(Ended, "0.1.0")}
    messages = [inbox.put(0.0, agent, sync(seq, reports=[ended(f"{seq}.1.0")])) for seq in range(MAX_PER_NODE + 1)]
    assert messages == [True] * MAX_PER_NODE + [False], "what was acknowledged before does not count"


def test_newer_message_that_repeats_reports_replaces_the_older():
    inbox, agent = Inbox[Agent](), Agent()
    for seq in range(100):
        assert inbox.put(0.0, agent, sync(seq, reports=[ended(f"{n}.1.0") for n in range(seq + 1)]))
    assert len(names(inbox.pop(99))) == 100


def test_relative_times_grow_while_a_message_waits():
    inbox, agent = Inbox[Agent](), Agent()
    reports = [Ended(key="1.1.0", at=AT, reason="exited", seconds_ago=2.0), Started(key="2.1.0", at=AT, pid=1)]
    inbox.put(100.0, agent, sync(1, reports=reports))
    [waiting] = inbox.pop(9)
    assert waiting.as_of(100.1) == waiting.message
    later = waiting.as_of(160.0)
    assert later.at == "2030-01-01T00:01:00+00:00"
    assert [report.seconds_ago for report in later.reports] == [62.0, None]
    assert [report.at for report in later.reports] == [AT, AT]


def test_returned_messages_precede_newer_ones():
    inbox, first, second = Inbox[Agent](), Agent(1), Agent(2)
    inbox.put(0.0, first, sync(0, reports=[ended("1.1.0")]))
    popped = inbox.pop(9)
    inbox.put(1.0, second, sync(1))
    inbox.put(2.0, first, sync(2))
    inbox.put_back(popped)
    assert inbox.oldest_at == 0.0
    assert [(w.link.node_id, w.message.seq) for w in inbox.pop(9)] == [(1, 0), (1, 2), (2, 1)]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sets(st.integers(0, 5)), st.booleans(), st.sampled_from("pptb")), max_size=60
    )
)
def test_every_report_is_popped_or_was_refused(steps: list[tuple[int, set[int], bool, str]]) -> None:
    """p: put, t: take, b: take and put back."""
    inbox = Inbox[Agent]()
    agents = {node_id: Agent(node_id) for node_id in (1, 2, 3)}
    expected: set[tuple[int, str]] = set()
    popped: list[QueuedMessage[Agent]] = []
    for seq, (node_id, jobs, has_facts, step) in enumerate(steps):
        if step == "p":
            message = sync(seq, reports=[ended(f"{job}.1.0") for job in jobs], facts=FACTS if has_facts else None)
            if inbox.put(float(seq), agents[node_id], message):
                expected |= {(node_id, f"{job}.1.0") for job in jobs}
        else:
            batch = inbox.pop(1)
            if step == "b":
                inbox.put_back(batch)
            else:
                popped += batch
        assert len(inbox) <= 3 * 2 * MAX_PER_NODE
    popped += inbox.pop(1000)
    assert {(w.link.node_id, report.key) for w in popped for report in w.message.reports} == expected
    assert len(inbox) == 0
