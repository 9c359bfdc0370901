"""Generate the tables of codes in docs/rest.md from their definitions: states, reasons, ends, errors."""

from deploy.reference.parts import code, add_links, table
from gpusched.lib.api.problem_codes import CODES
from gpusched.protocol import field_docs, reasons
from gpusched.protocol.exits import NEXT_STEPS
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState

_KINDS = {"waiting": WAITING, "live": LIVE, "final": FINAL}


def problem_codes() -> str:
    """Return a table of error codes, by status."""
    rows = [(code(name), str(status), when) for name, (status, when) in sorted(CODES.items(), key=lambda c: c[1][0])]
    return table(("code", "status", "when"), rows)


def job_states() -> str:
    """Return a table of job states, each waiting, live or final."""
    rows = [(code(state), _kind(state), add_links(field_docs.STATES[state])) for state in JobState]
    return table(("state", "kind", "meaning"), rows)


def _kind(state: JobState) -> str:
    return next(kind for kind, states in _KINDS.items() if state in states)


def reason_codes() -> str:
    """Return a table of the reasons to wait."""
    return _sentences(reasons.PENDING)


def notices() -> str:
    """Return a table of the notices of running jobs."""
    return _sentences(reasons.NOTICES)


def _sentences(catalogue: dict[str, tuple[str, str]]) -> str:
    rows = [(code(name), sentence, step) for name, (sentence, step) in catalogue.items()]
    return table(("code", "sentence", "what to do"), rows)


def ends() -> str:
    """Return a table of the ends of attempts."""
    rows = [
        (
            code(end),
            reasons.ENDED[end],
            add_links(field_docs.ENDS.get(end, "")),
            "yes" if end in reasons.NODE_FAULTS else "",
        )
        for end in reasons.EndReason
    ]
    return table(("code", "sentence", "details", "fault of the node"), rows)


def exit_classes() -> str:
    """Return a table of the classes of ends, in the order in which the agent tries them."""
    rows = [(code(name), add_links(when), NEXT_STEPS[name]) for name, when in field_docs.CLASSES.items()]
    return table(("class", "when", "what to do"), rows)
