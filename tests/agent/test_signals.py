"""Signals to a job: once each, in order, to the first process of each running rank, and across restarts."""

import sys

from gpusched.agent.supervisor import signals
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually

# Counts and prints its signals; its helper would end by any of them, and with it the program.
PROGRAM = """
import signal, subprocess, sys
helper = subprocess.Popen(["sleep", "600"])
for name in ("USR1", "USR2"):
    signal.signal(getattr(signal, f"SIG{name}"), lambda number, _: print("got", signal.Signals(number).name, flush=True))
print("ready", flush=True)
while helper.poll() is None:
    signal.sigtimedwait([], 0.1)
print("the helper ended", flush=True)
"""


def output_lines(control: Control, key: str) -> list[str]:
    return control.logs.get(key, b"").decode().split("\n")[1:-1]


def test_each_signal_reaches_only_the_program_once(agent: Agent, control: Control) -> None:
    agent.start()
    key = control.run(sys.executable, "-c", PROGRAM)
    control.start_of(key)
    eventually(lambda: b"ready" in control.logs.get(key, b""), 20, "the program")
    control.signal(key, 1, "USR1")  # told again with each answer, from now on
    control.signal("9.1.0", 1, "USR1")
    eventually(lambda: output_lines(control, key) == ["got SIGUSR1"], 20, "the first signal")
    eventually(lambda: control.syncs[-1].signalled == {key: 1}, 20, "what was taken")
    agent.kill()
    control.signal(key, 3, "USR1")
    control.signal(key, 2, "USR2")  # in another order
    agent.start()
    eventually(lambda: len(output_lines(control, key)) == 3, 20, "the others")
    eventually(lambda: control.syncs[-1].signalled == {key: 3}, 20, "what was taken")
    syncs_before = len(control.syncs)
    eventually(lambda: len(control.syncs) > syncs_before + 5, 20, "more answers")
    assert output_lines(control, key)[0] == "got SIGUSR1"
    assert sorted(output_lines(control, key)[1:]) == ["got SIGUSR1", "got SIGUSR2"]
    control.stop(key, grace_seconds=1)
    assert control.end_of(key).reason == "cancelled"


def test_signal_that_ends_the_program_is_its_end(agent: Agent, control: Control) -> None:
    agent.start()
    key = control.run("sleep", "600")
    control.start_of(key)
    control.signal(key, 1, "QUIT")
    end = control.end_of(key)
    assert (end.signal, end.reason) == (3, "signalled")


def test_signal_that_a_killed_agent_only_wrote_is_sent_after_its_restart(agent: Agent, control: Control) -> None:
    agent.start()
    key = control.run("sleep", "600")
    control.start_of(key)
    agent.kill()
    signals.enqueue(agent.ranks / key, 1, "QUIT")
    agent.start()
    assert control.end_of(key).signal == 3
