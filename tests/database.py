"""The PostgreSQL of the tests: one server for the whole run, its data thrown away."""

import os
import signal
import tempfile
from pathlib import Path

from django.db import connections

from gpusched.lib.db.connections import django_database
from gpusched.lib.db.embedded import FAST, Server
from gpusched.lib.process.children import die_with_parent


def start() -> Server | None:
    """Starts the server and points Django at it; None when another process of this run has done so already."""
    if os.environ.get("GPUSCHED_DATABASE_URL"):
        return None
    directory = Path(tempfile.mkdtemp(prefix="gpusched-test-"))
    directory.chmod(0o755)
    server = Server(directory, settings=FAST)
    server.start(preexec=die_with_parent(signal.SIGQUIT))
    os.environ["GPUSCHED_DATABASE_URL"] = server.url()
    connections.databases["default"].update(django_database(server.url()))
    return server


def stop(server: Server) -> None:
    server.remove()
