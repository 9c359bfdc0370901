"""A stand-in for docker: a client that records its command lines, and a daemon whose containers are plain processes,
not children of the agent. An ended container stays until it is removed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from tests.agent.control import eventually

_CLIENT = """#!{python} -S
import json, os, signal, socket, sys
if sys.argv[1] == "version":
    sys.exit(print("27.1.2") if os.path.exists({home!r} + "/socket") else 1)
talk = socket.socket(socket.AF_UNIX)
talk.connect({home!r} + "/socket")
def send(**what):
    talk.sendall(json.dumps(what).encode() + b"\\n")
def proxy(number, _):
    send(signal=number)
# As docker does of signals that its client gets.
signal.signal(signal.SIGTERM, proxy)
send(argv=sys.argv[1:], environment=dict(os.environ))
answers = talk.makefile()
for line in answers:
    told = json.loads(line)
    sys.stdout.write(told.get("output", ""))
    sys.stdout.flush()
    if "code" in told:
        sys.exit(told["code"])
sys.exit(125)
"""


class Container:
    """The `process`, the clients attached to its output (without one, output is lost), and the answer of inspect."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.is_out_of_memory = process, False
        self.has_told_all = threading.Event()
        self.attached: list[socket.socket] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def serve(self, talk: socket.socket) -> dict[str, Any]:
        """Sends what it prints from now on; gives what its client ends with."""
        self.attached.append(talk)
        self.process.wait()
        self.has_told_all.wait()
        return {"code": self.code}

    def pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            for talk in self.attached:
                with contextlib.suppress(OSError):  # the client was killed; the container is not
                    talk.sendall(json.dumps({"output": line}).encode() + b"\n")
        self.has_told_all.set()


class Dockerd:
    """`with Dockerd(home) as docker`: `docker.path` is the client; `docker.runs`: (argv, environment) of each run;
    `docker.is_away`: the daemon does not answer, and its containers continue."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.path = home / "docker"
        self.path.write_text(_CLIENT.format(python=sys.executable, home=str(home)))
        self.path.chmod(0o755)
        self.runs: list[tuple[list[str], dict[str, str]]] = []
        self.calls: list[list[str]] = []
        self.containers: dict[str, Container] = {}
        self.is_away = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(home / "socket"))
        self._listener.listen()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for container in list(self.containers.values()):
            container.process.kill()
            container.process.wait()

    def _accept(self) -> None:
        while True:
            try:
                talk, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(talk,), daemon=True).start()

    def _serve(self, talk: socket.socket) -> None:
        with talk, talk.makefile() as orders:
            first = orders.readline()
            if not first.endswith("\n"):
                return  # its client was killed
            order = json.loads(first)
            argv = order["argv"]
            self.calls.append(argv)
            if self.is_away:
                answer = {"output": "docker: Cannot connect to the Docker daemon at here.\n", "code": 125}
            elif argv[0] == "run":
                self.runs.append((argv, order["environment"]))
                answer = self._run(argv, order["environment"], talk, orders)
            elif argv[0] == "attach":
                answer = self.containers[argv[-1]].serve(talk) if argv[-1] in self.containers else {"code": 1}
            else:
                answer = getattr(self, f"_{argv[0]}")(argv)
            with contextlib.suppress(OSError):  # the client was killed; the container is not
                talk.sendall(json.dumps(answer).encode() + b"\n")

    def only(self) -> Container:
        """The one container that there is; its job may be ready a moment before it is listed."""
        eventually(lambda: len(self.containers) == 1, 20, "the container to be listed")
        [container] = self.containers.values()
        return container

    def _run(self, argv: list[str], client: dict[str, str], talk: socket.socket, orders: Any) -> dict[str, Any]:
        name, program = _value(argv, "--name"), _value(argv, "--entrypoint")
        image = argv.index("--entrypoint") + 2
        lines = Path(_value(argv, "--env-file")).read_text().splitlines()
        inside = dict(line.split("=", 1) for line in lines)
        late = [argv[at + 1] for at, word in enumerate(argv) if word == "--env"]
        inside |= {variable: client[variable] for variable in late if variable in client}
        process = subprocess.Popen(
            [program, *argv[image + 1 :]], env={"PATH": os.defpath, **inside}, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.containers[name] = container = Container(process)
        Path(_value(argv, "--cidfile")).write_text("c0ffee")
        threading.Thread(target=_proxy, args=(orders, process), daemon=True).start()
        pump = threading.Thread(target=container.pump, daemon=True)
        container.attached.append(talk)
        pump.start()
        pump.join()
        process.wait()
        return {"code": container.code}

    def _kill(self, argv: list[str]) -> dict[str, Any]:
        container = self.containers.get(argv[-1])
        if container is None or container.code is not None:
            return {"code": 1}
        container.process.send_signal(_number(_value(argv, "--signal")))
        return {"code": 0}

    def _rm(self, argv: list[str]) -> dict[str, Any]:
        container = self.containers.pop(argv[-1], None)
        if container is not None:
            container.process.kill()
            container.process.wait()
        return {"code": 0}

    def _ps(self, argv: list[str]) -> dict[str, Any]:
        name_filter = _value(argv, "--filter").removeprefix("name=")
        return {"code": 0, "output": "".join(f"{name}\n" for name in list(self.containers) if name_filter in name)}

    def _container(self, argv: list[str]) -> dict[str, Any]:
        """`container inspect --format …`, whose format is that of the contract: status, exit code, OOM, error."""
        container = self.containers.get(argv[-1])
        if container is None:
            return {"code": 1}
        code = container.code
        status = "running 0" if code is None else f"exited {code}"
        return {"code": 0, "output": f"{status} {str(container.is_out_of_memory).lower()} \n"}


def _proxy(orders: Any, container: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed with the container's end, or cut short with its client
        for line in orders:
            container.send_signal(json.loads(line)["signal"])


def _number(name: str) -> int:
    return signal.Signals[f"SIG{name}"].value


def _value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]
