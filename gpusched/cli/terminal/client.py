"""The client of commands. It notes on stderr what is to be known of a request that takes long or is interrupted."""

from typing import TypeVar

from gpusched.cli.terminal import messages
from gpusched.client import Client
from gpusched.client.transport.call import Call

T = TypeVar("T")


class CommandClient(Client):
    """Arguments as those of Client, without `on_retry`."""

    def __init__(self, url: str | None = None, token: str | None = None, *, ca_file: str | None = None) -> None:
        super().__init__(url, token, ca_file=ca_file, on_retry=self._note_outage)
        self._noted = ""

    def send(self, call: Call[T], patience_seconds: float | None = None) -> T:
        """Note on Ctrl-C that the request may have been sent: a second one could do the work twice."""
        try:
            return super().send(call, patience_seconds)
        except KeyboardInterrupt:
            if call.acts_again:
                messages.note(
                    "\ninterrupted before the answer of the server, which may have carried out the request;"
                    " check the result before you repeat it"
                )
            raise

    def _note_outage(self, because: str) -> None:
        """Print each new reason for a retry once."""
        if because != self._noted:
            messages.note(f"{because}; trying again")
        self._noted = because
