"""Point-in-time recovery: what the user's PostgreSQL does with a base backup and its archive of WAL (A85)."""

import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

import psycopg
import pytest

from gpusched.client import NotFound
from gpusched.lib.db.embedded import Server, client_program
from jobs.lifecycle.restored_ids import SKIPPED_IDS, skip_ids
from tests.e2e.test_restore import recording, runs, starts
from tests.system import prepared
from tests.system.stack import Stack
from tests.waiting import until_exists, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


class Archiving(Stack):
    """A server whose PostgreSQL archives its WAL."""

    def __enter__(self) -> Self:
        self.archive = self.directory / "archive"
        self.archive.mkdir()
        self.archive.chmod(0o777)
        self.is_prepared = False
        self.password = prepared.copy_to(self.data_dir)
        command = f"test ! -f {self.archive}/%f && cp %p {self.archive}/%f"
        self.configure(wal_level="replica", max_wal_senders="2", archive_mode="on", archive_command=command)
        return super().__enter__()

    @property
    def database(self) -> Server:
        return Server(self.data_dir / "postgres")

    def configure(self, **settings: str) -> None:
        with (self.database.data / "postgresql.auto.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def base_backup(self) -> Path:
        """Copy the running cluster, as an administrator does every night."""
        place = self.directory / "base"
        subprocess.run([client_program("pg_basebackup"), "--checkpoint=fast", "--wal-method=none", "-D", place, "-d",
                        self.database_url()], check=True, capture_output=True)  # fmt: skip
        return place

    def moment(self) -> str:
        with psycopg.connect(self.database_url(), autocommit=True) as database:
            [moment] = database.execute("SELECT clock_timestamp()::text").fetchone() or ("",)
        return str(moment)

    def archive_all(self) -> None:
        """Close the present file of the WAL, and wait until it is in the archive."""
        with psycopg.connect(self.database_url(), autocommit=True) as database:
            [name] = database.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
        wait_for((self.archive / str(name)).exists, 60, "the WAL to be archived")

    def recover(self, base: Path, moment: str) -> None:
        """Replace the cluster by the base backup, replayed until the moment, and leave a gap in the ids."""
        data = self.database.data
        lost = data.rename(data.with_name("lost"))
        subprocess.run(["cp", "-a", str(base), str(data)], check=True)
        (data / "recovery.signal").touch()
        self.configure(
            restore_command=f"cp {self.archive}/%f %p", recovery_target_time=moment, recovery_target_action="promote"
        )
        owner = lost.stat()
        subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(data)], check=True)
        data.chmod(0o700)
        server = self.database
        server.start(timeout_seconds=60)
        try:
            wait_for(partial(self._is_writable, server), 60, "the recovery to end")
            with psycopg.connect(server.url()) as database:
                database.execute(skip_ids())
        finally:
            server.stop()

    def _is_writable(self, server: Server) -> bool:
        with psycopg.connect(server.url()) as database:
            return database.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)


@pytest.fixture
def stack() -> Iterator[Archiving]:
    with Archiving(heartbeat_seconds=0.5) as running:
        running.agent("--pretend", "1:A100:40960:8:64:65536", name="n", own_jobs=False)
        wait_for(lambda: running.client().status().online_nodes == 1, 60, "the node to be online")
        yield running


def test_database_of_an_earlier_moment_continues_and_runs_no_job_twice(stack: Archiving) -> None:
    """A85. Of the jobs submitted after the base backup and before the moment, one still runs after the recovery, and one
    has ended in between, which only its agent still knows. The server does not know the job after the moment."""
    client, place = stack.client(), stack.directory / "starts"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    base = stack.base_backup()

    def until(name: str) -> str:
        return f"{until_exists(place / name)}; exit 3"

    running = client.submit(recording(place / "running", until("later")), gpus=1)
    ending = client.submit(recording(place / "ending", until("go")), gpus=1)
    done = client.submit(recording(place / "done", "true"), gpus=1)
    client.wait(done.id, timeout=60)
    for job in (running, ending):
        wait_for(partial(runs, client, job.id), 60, f"{job.id} to run")
    moment = stack.moment()
    after = client.submit(recording(place / "after", "true"), gpus=1)
    (place / "go").touch()
    for job in (after, ending):
        client.wait(job.id, timeout=60)
    stack.archive_all()
    assert stack.up is not None
    stack.up.send_signal(signal.SIGTERM)
    stack.up.wait(60)
    stack.recover(base, moment)
    stack.start()
    client = stack.client()
    with pytest.raises(NotFound):
        client.get(after.id)
    wait_for(lambda: client.get(ending.id).exit_code == 3, 60, "the agent to report the end again")
    assert client.get(done.id).state == "completed"
    assert (client.get(running.id).state, client.get(running.id).attempt) == ("running", 1)
    (place / "later").touch()
    assert client.wait(running.id, timeout=60).exit_code == 3
    assert client.submit(["true"], gpus=0).id > after.id + SKIPPED_IDS // 2
    assert {name: starts(place / name) for name in ("running", "ending", "done", "after")} == dict.fromkeys(
        ("running", "ending", "done", "after"), 1
    )
