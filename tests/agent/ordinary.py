"""Run work as an ordinary user: for root as `nobody`, in a forked process that needs no file of the checkout."""

import os
import pwd
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path


def as_ordinary_user(work: Callable[[Path], str]) -> str:
    """Call `work` with an empty directory of that user; return its result, or the traceback of its error."""
    home = Path(tempfile.mkdtemp(prefix="gpusched-ordinary-"))
    reading, writing = os.pipe()
    if os.geteuid() == 0:
        entry = pwd.getpwnam("nobody")
        os.chown(home, entry.pw_uid, entry.pw_gid)
    if (pid := os.fork()) == 0:
        os.close(reading)
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(entry.pw_gid)
                os.setuid(entry.pw_uid)
            text = work(home)
        except BaseException:  # noqa: BLE001 - the test process reports it
            text = traceback.format_exc()
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    try:
        with open(reading, "rb") as file:
            text = file.read().decode()
        os.waitpid(pid, 0)
    finally:
        shutil.rmtree(home)
    return text
