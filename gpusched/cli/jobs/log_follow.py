"""Following one job on the terminal: its output to stdout byte by byte, what happens to it to stderr."""

import sys
from typing import TYPE_CHECKING

from gpusched.cli.terminal import messages
from gpusched.protocol.rest.jobs import Log

if TYPE_CHECKING:
    from gpusched.client import Client, Job


class Reader:
    """Remembers how far it has read, so that reading goes on there after an interrupt."""

    def __init__(
        self, client: "Client", job: "Job", *, attempt: int | None = None, rank: int = 0, offset: int = 0
    ) -> None:
        self.client, self.job = client, job
        self.attempt, self.rank, self.offset = attempt, rank, offset

    def read(self) -> "Job":
        """Shows output until the job (or the one attempt asked for) has ended; gives the job as last seen."""
        for item in self.client.follow(self.job.id, attempt=self.attempt, rank=self.rank, offset=self.offset):
            if isinstance(item, Log):
                # Bytes, not text: a piece may end in the middle of a character.
                sys.stdout.buffer.write(item.data)
                sys.stdout.buffer.flush()
                self.offset = item.next_offset
            else:
                self._tell(item)
                self.job = item
        return self.job

    def _tell(self, job: "Job") -> None:
        if job.attempt > max(self.job.attempt, 1):
            self.offset = 0
            messages.note(f"job {job.id}: attempt {job.attempt}")
        why = f": {job.reason.sentence}" if job.reason and job.reason.sentence else ""
        where = f" on {', '.join(job.nodes)}" if job.nodes and job.state == "running" else ""
        messages.note(
            f"job {job.id} is {job.state}{where}{why}" if not job.is_final else f"job {job.id} {job.state}{why}"
        )
