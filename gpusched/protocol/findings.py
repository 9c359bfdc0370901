"""The findings of `gpusched-agent doctor` and `gpusched-server doctor`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
# Between two clocks.
SOME_SKEW_SECONDS, MAX_SKEW_SECONDS = 3.0, 60.0
# The checks of a disk that cannot be written, and what the disk became: the server starts no jobs on its node.
READ_ONLY_DISK, FULL_DISK = "read_only_disk", "full_disk"
UNUSABLE_DISK = {READ_ONLY_DISK: "read-only", FULL_DISK: "full"}


@dataclass(frozen=True)
class Finding:
    """A line of the result: `level` is `ok`, `warn` or `fail`; `next_step` is empty if there is nothing to do."""

    check: str
    level: str
    says: str
    next_step: str = ""


def as_lines(findings: Sequence[Finding]) -> str:
    """Return the findings for people, one line each."""
    width = max(len(finding.check) for finding in findings)
    lines = [f"{finding.level:<4}  {finding.check:<{width}}  {finding.says}" for finding in findings]
    return "\n".join(
        f"{line}; {finding.next_step}" if finding.next_step else line
        for line, finding in zip(lines, findings, strict=True)
    )


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2)
