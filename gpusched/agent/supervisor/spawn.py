"""Start the process of one rank: in its cgroup, as its user, without inherited handles or settings. Standard library
only, because it runs in supervisors."""

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

from gpusched.agent.isolation import cgroup, device_filter, private_tmp
from gpusched.agent.rank_files import rank_dir

_OUTPUT = os.O_WRONLY | os.O_CREAT | os.O_APPEND
# The job would inherit ignored signals: from Python and the supervisor, or because nohup or a script's `&` started the
# agent.
_DEFAULT = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


# Lack of a resource, a disk error, or a mount that lost its server or its FUSE process, of this node: the same request
# may start elsewhere.
_OF_NODE = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE,
    errno.ENOTCONN, errno.ESHUTDOWN, errno.ETIMEDOUT, errno.EHOSTDOWN,
})  # fmt: skip


class StartError(Exception):
    """The process could not be started. The text says why, briefly. `is_of_node`: it is the node's fault."""

    def __init__(self, sentence: str, number: int | None = None) -> None:
        super().__init__(sentence)
        self.is_of_node = number in _OF_NODE


def enclose(spec: dict[str, Any]) -> None:
    """Create the rank's cgroup, if it has one, before anything runs in it. OSError if it fails."""
    if group := spec.get("cgroup"):
        cgroup.make(group["path"], group["limits"])
        if "devices" in group:
            device_filter.restrict(group["path"], device_filter.NVIDIA_MAJOR, group["devices"])


def spawn(directory: str, spec: dict[str, Any], environment: dict[str, str]) -> int:
    """Start the rank and return its pid, which is also its session id. Raises StartError; then no process is left.

    For the agent's own user without fork: a second copy of this process would cost more than everything else that a
    supervisor does. Another user needs code between fork and exec."""
    os.umask(spec.get("umask", 0o077))
    try:
        if spec.get("account"):
            return _as_another(directory, spec, environment)
        os.chdir(spec["workdir"])
        os.environ["PATH"] = environment.get("PATH", os.defpath)  # to find the program
        if group := spec.get("cgroup"):
            return _inside(group, lambda: _as_self(directory, spec, environment))
        return _as_self(directory, spec, environment)
    except (OSError, ValueError) as error:
        raise StartError(_describe(spec, error), getattr(error, "errno", None)) from error


def _as_self(directory: str, spec: dict[str, Any], environment: dict[str, str]) -> int:
    return os.posix_spawnp(
        spec["argv"][0],
        spec["argv"],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{directory}/{rank_dir.LOG}", _OUTPUT, 0o640),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT,
    )


def _inside(group: dict[str, Any], start: Callable[[], int]) -> int:
    """Start the process from within its cgroup, so that it is born there. This process must leave before the group is
    killed."""
    cgroup.enter(group["path"])
    try:
        pid = start()
    except BaseException:
        cgroup.enter(group["home"])
        raise
    try:
        cgroup.enter(group["home"])
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return pid


def _as_another(directory: str, spec: dict[str, Any], environment: dict[str, str]) -> int:
    """Start the process by fork. The child reports a failure through a pipe, which closes when the program starts."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with open(reader, "rb") as pipe:
        try:
            # Opened as root: the job writes to its log through the handle, and cannot open the file.
            log = os.open(f"{directory}/{rank_dir.LOG}", _OUTPUT | os.O_CLOEXEC, 0o600)
            try:
                pid = os.fork()
                if pid == 0:
                    _become(log, spec, environment, writer)
            finally:
                os.close(log)
        finally:
            os.close(writer)
        number, _, problem = pipe.read().partition(b" ")
    if number:
        os.waitpid(pid, 0)
        raise StartError(problem.decode(errors="replace"), int(number))
    return pid


def _become(log: int, spec: dict[str, Any], environment: dict[str, str], writer: int) -> None:
    """Turn the child into the program; never returns."""
    try:
        os.setsid()
        if group := spec.get("cgroup"):
            cgroup.enter(group["path"])
        null = os.open(os.devnull, os.O_RDONLY)
        for handle, number in ((null, 0), (log, 1), (log, 2)):
            os.dup2(handle, number)
        account = spec["account"]
        if tmp := spec.get("private_tmp"):
            private_tmp.enter(tmp)
        os.setgroups(account["groups"])
        os.setresgid(account["gid"], account["gid"], account["gid"])
        os.setresuid(account["uid"], account["uid"], account["uid"])
        os.chdir(spec["workdir"])  # as this user, who may lack access
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvpe(spec["argv"][0], spec["argv"], environment)  # noqa: S606 - a user's own command
    except (OSError, ValueError) as error:
        message = f"{getattr(error, 'errno', None) or 0} {_describe(spec, error)}"
        os.write(writer, message.encode(errors="replace")[:4000])
    finally:
        os._exit(127)


def _describe(spec: dict[str, Any], error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):  # a null byte
        return f"{spec['argv'][0]}: {error}"
    if error.filename == spec["workdir"]:
        return f"workdir {spec['workdir']}: {error.strerror}"
    return f"{spec['argv'][0]}: {error.strerror}"
