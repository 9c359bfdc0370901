"""Run the embedded PostgreSQL in the foreground, for a supervisor such as systemd."""

import fcntl
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpusched.lib.db import embedded
from gpusched.lib.ownership import open_lock
from gpusched.lib.process.children import die_with_parent
from gpusched.lib.process.systemd import notify_ready


class Command(BaseCommand):
    help = "Run the embedded PostgreSQL until SIGTERM; `up` does that by itself."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.ENV.database_url:
            raise CommandError("GPUSCHED_DATABASE_URL names another database, so the embedded one is not needed")
        data_dir = settings.DATA_DIR
        data_dir.mkdir(parents=True, exist_ok=True)
        with open_lock(data_dir) as lock:  # by which `up`, `backup` and `restore` know that it runs
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CommandError(f"gpusched is running with the data in {data_dir}; stop it first") from error
            self._run()

    def _run(self) -> None:
        server = embedded.Server(settings.DATA_DIR / "postgres")
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        end_with_parent = die_with_parent(signal.SIGINT)

        def start_child() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            end_with_parent()

        try:
            server.start(preexec=start_child)
        except embedded.PostgresError as error:
            raise CommandError(str(error)) from error
        server.publish(settings.DATA_DIR / "database_url")
        notify_ready()
        signal.sigwait(signals | {signal.SIGCHLD})
        assert server.process is not None
        ended = server.process.poll()
        server.stop()
        if ended is not None:
            raise CommandError(f"PostgreSQL ended with {ended}; its log is in {server.data.parent / 'log'}")
