"""The tables of words in docs/rest.md, from the code that decides them: states, reasons, ends, refusals."""

from deploy.reference.parts import code, add_links, table
from gpusched.lib.api.problem_codes import CODES
from gpusched.protocol import field_docs, reasons
from gpusched.protocol.exits import NEXT_STEPS
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState

_KINDS = {"waiting": WAITING, "live": LIVE, "final": FINAL}


def problem_codes() -> str:
    """A row for each code of a refusal, by status."""
    rows = [(code(name), str(status), when) for name, (status, when) in sorted(CODES.items(), key=lambda c: c[1][0])]
    return table(("code", "status", "when"), rows)


def job_states() -> str:
    """A row for each state, with whether a job in it waits, is live, or has ended."""
    rows = [(code(state), _kind(state), add_links(field_docs.STATES[state])) for state in JobState]
    return table(("state", "kind", "meaning"), rows)


def _kind(state: JobState) -> str:
    return next(kind for kind, states in _KINDS.items() if state in states)


def reason_codes() -> str:
    """A row for each reason to wait."""
    return _sentences(reasons.PENDING)


def notices() -> str:
    """A row for each notice of a job that runs."""
    return _sentences(reasons.NOTICES)


def _sentences(told: dict[str, tuple[str, str]]) -> str:
    rows = [(code(name), sentence, step) for name, (sentence, step) in told.items()]
    return table(("code", "the sentence", "what to do"), rows)


def ends() -> str:
    """A row for each way in which an attempt may end."""
    rows = [
        (
            code(end),
            reasons.ENDED[end],
            add_links(field_docs.ENDS.get(end, "")),
            "yes" if end in reasons.NODE_FAULTS else "",
        )
        for end in reasons.EndReason
    ]
    return table(("code", "the sentence", "more of it", "a fault of the node"), rows)


def exit_classes() -> str:
    """A row for each class of ends, in the order in which they are tried."""
    rows = [(code(one), add_links(when), NEXT_STEPS[one]) for one, when in field_docs.CLASSES.items()]
    return table(("class", "when", "what to do"), rows)
