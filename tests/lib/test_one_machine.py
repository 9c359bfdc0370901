"""The supervisor of one machine, with a database that fails."""

import socket
from pathlib import Path
from typing import Any

import pytest

from gpusched.env import Env
from gpusched.lib.db import embedded
from gpusched.lib.process.one_machine import Machine, StartError


class FullDisk(embedded.Server):
    """A database that starts at the second try."""

    tries = 0

    def start(self, *_: Any, **__: Any) -> None:
        self.tries += 1
        self.process = None
        if self.tries == 1:
            raise embedded.PostgresError("no space left on device")


def test_database_that_does_not_start_again_ends_nothing_else(tmp_path: Path) -> None:
    lines: list[str] = []
    machine = Machine(tmp_path, Env(), 0, demo=False, agent=False, log=lines.append)
    machine.database = FullDisk(tmp_path)
    for _ in range(2):
        machine._restart_database()
    assert machine.database.tries == 2
    assert lines.count("the database does not start: no space left on device") == 1


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
