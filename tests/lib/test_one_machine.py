"""The supervisor of one machine, with a database that fails."""

import socket
from pathlib import Path
from typing import Any

import pytest

from gpusched.env import Env
from gpusched.lib.db import embedded
from gpusched.lib.process import part_logs
from gpusched.lib.process.one_machine import Machine, StartError
from gpusched.lib.process.parts import Part


class FullDisk(embedded.Server):
    """A database that starts at the second try."""

    tries = 0

    def start(self, *_: Any, **__: Any) -> None:
        self.tries += 1
        self.process = None
        if self.tries == 1:
            raise embedded.PostgresError("no space left on device")


class Running(embedded.Server):
    """A database that need not be started again."""

    def start(self, *_: Any, **__: Any) -> None: ...


def test_database_that_does_not_start_again_ends_nothing_else(tmp_path: Path) -> None:
    lines: list[str] = []
    machine = Machine(tmp_path, Env(), 0, demo=False, agent=False, log=lines.append)
    machine.database = FullDisk(tmp_path)
    for _ in range(2):
        machine._restart_database()
    assert machine.database.tries == 2
    assert lines.count("the database does not start: no space left on device") == 1


def test_second_head_is_not_told_of_a_token_that_it_does_not_have(tmp_path: Path) -> None:
    """Only the machine that creates the admin stores a token; the lines of the others ended in an error."""
    lines: list[str] = []
    machine = Machine(tmp_path, Env(), 8000, demo=False, agent=False, log=lines.append)
    machine._greet({}, 1.0)
    assert not any("TOKEN_FILE" in line for line in lines) and "    gpusched login" in lines
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "admin").write_text("token")
    lines.clear()
    machine._greet({}, 1.0)
    assert any(f"GPUSCHED_TOKEN_FILE={tmp_path}/tokens/admin" in line for line in lines)
    assert "    gpusched login" not in lines


def test_server_listens_on_an_ipv6_address(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as other:
        try:
            other.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = other.getsockname()[1]
        machine = Machine(tmp_path, Env(http_host="::1"), port, demo=False, agent=False, log=lambda _: None)
        other.listen()
        with pytest.raises(StartError, match="Address already in use"):
            machine._require_free_port()
    machine._require_free_port()
    assert machine.url == f"http://[::1]:{port}"


def test_logs_of_running_parts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_logs, "MAX_BYTES", 5)
    machine = Machine(tmp_path, Env(), 0, demo=False, agent=False, log=lambda _: None)
    tmp_path.chmod(0o755)  # for a user of PostgreSQL, else its data are under /var/lib
    machine.database = Running(tmp_path / "postgres")
    machine.parts = [Part("web", []), Part("cycles", [])]
    machine._output(machine.parts[0]).parent.mkdir()
    logs = [machine.database.log, *map(machine._output, machine.parts)]
    with logs[0].open("ab", 0) as database, logs[1].open("ab", 0) as web:
        logs[2].write_bytes(b"short")
        for number in range(3):
            database.write(b"%d: an error" % number)
            web.write(b"%d: a warning" % number)
            machine.stopping = False
            machine._pause = lambda seconds: setattr(machine, "stopping", True)  # type: ignore[method-assign]
            machine._watch()
    assert [log.read_bytes() for log in logs] == [b"", b"", b"short"]
    assert logs[0].with_name("log.1").read_bytes() == b"2: an error"
    assert logs[1].with_name("web.log.1").read_bytes() == b"2: a warning"
