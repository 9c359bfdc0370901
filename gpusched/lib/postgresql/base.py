"""The database engine of the settings: Django's, but a kept connection is asked for its health without a round trip."""

import select

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    def is_usable(self) -> bool:
        """Django runs a statement before the first one of each request: a tenth of the time of a submit. A server that
        ended or was killed has closed the connection, and that can be read from it; only then the statement decides."""
        if self.connection is None or self.connection.closed:
            return False
        waiting = select.poll()
        waiting.register(self.connection.pgconn.socket, select.POLLIN)
        return not waiting.poll(0) or bool(super().is_usable())
