"""Prepare a job's process: its command, directory and environment, without the agent's own."""

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Any

from gpusched.agent import config
from gpusched.agent.containers import runtimes
from gpusched.agent.isolation.confinement import Confinement, confined
from gpusched.agent.rank_files import rank_dir, secret_files, socket_dir
from gpusched.protocol.agent_messages import RankSpec

# Variables that describe this machine; never a token or a setting.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


def job_spec(directory: Path, spec: RankSpec, node: str, confinement: Confinement) -> dict[str, Any]:
    """Return spec.json of a rank. Write its script, if it has one, and create its directory for temporary files, both
    for the rank's user."""
    scope = secrets.token_hex(16)
    fact = confined(confinement, directory, spec, scope)
    account = fact.get("account")
    argv = list(spec.argv)
    if spec.script is not None:
        script = directory / rank_dir.SCRIPT
        text = spec.script if spec.script.startswith("#!") else f"#!/bin/sh\n{spec.script}"
        script.write_text(text, "utf-8")  # whatever the agent's locale
        script.chmod(0o700)
        argv = [*_interpreter(text), str(script), *argv]
    with contextlib.suppress(FileExistsError):  # a preparation was cut short
        os.mkdir(directory / rank_dir.TMP, 0o700)
    if account:
        _give_access(directory, account)
    spec_json: dict[str, Any] = {
        "argv": argv,
        "environment": _environment(directory, spec, node, scope, account),
        "workdir": spec.workdir or (account["home"] if account else os.path.expanduser("~")),
        "max_runtime_seconds": spec.max_runtime_seconds,
        "limit_version": spec.limit_version,
        "grace_seconds": spec.grace_seconds,
        **fact,
    }
    if "refusal" not in fact and (sockets := socket_dir.make(directory, account)) is not None:
        spec_json[rank_dir.SOCKETS_KEY] = spec_json["environment"][socket_dir.VARIABLE] = sockets
        if spec_json["environment"]["TMPDIR"] == str(directory / rank_dir.TMP):
            # Python's multiprocessing, and so PyTorch's DataLoader, creates sockets there.
            spec_json["environment"]["TMPDIR"] = socket_dir.short_path(directory / rank_dir.TMP, sockets)
    if spec.unfit:
        spec_json["unfit"] = spec.unfit
    if spec.secrets and "refusal" not in fact:
        spec_json[rank_dir.SECRETS_KEY] = secret_files.write(directory, spec.secrets, account)
        spec_json["environment"]["GPUSCHED_SECRETS_DIR"] = spec_json[rank_dir.SECRETS_KEY]
    if spec.image is None or "refusal" in fact:
        return spec_json
    try:
        return runtimes.containerize(directory, spec, spec_json, config.current())
    except runtimes.Refused as refused:
        return {**spec_json, "unfit": str(refused)}
    except runtimes.NoAnswer as fault:
        return {**spec_json, "fault": str(fault)}


def _interpreter(script: str) -> list[str]:
    """Return the program of a script's first line, with its argument, as the kernel reads it. The kernel itself would
    refuse a script on a file system that is mounted `noexec`, and would not name an interpreter that does not exist."""
    line = script.partition("\n")[0].removeprefix("#!").strip(" \t")
    return re.split("[ \t]+", line, maxsplit=1) if line else ["/bin/sh"]


def _give_access(directory: Path, account: dict[str, Any]) -> None:
    """Give the job's user access to the job's files. The directory and the control files stay root's: the user can
    pass through and read the notice. The checkpoint file exists from the start, with the oldest time, for the job to
    touch."""
    checkpoint = directory / rank_dir.CHECKPOINT
    checkpoint.touch(0o600)
    os.utime(checkpoint, (0, 0))
    os.chown(directory, -1, account["gid"])
    os.chmod(directory, 0o710)  # noqa: S103 - closed to other users  # nosec B103
    for name in (rank_dir.SCRIPT, rank_dir.TMP, rank_dir.CHECKPOINT):
        if os.path.exists(directory / name):
            os.chown(directory / name, account["uid"], account["gid"])


def _environment(
    directory: Path, spec: RankSpec, node: str, scope: str, account: dict[str, Any] | None
) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    passed["TMPDIR"] = str(directory / rank_dir.TMP)
    if account:
        name = account["name"]
        passed |= {"HOME": account["home"], "USER": name, "LOGNAME": name, "SHELL": account["shell"]}
    rank_variables = {
        "GPUSCHED_JOB_ID": str(spec.job_id),
        "GPUSCHED_ATTEMPT": str(spec.attempt),
        "GPUSCHED_RANK": str(spec.rank),
        "GPUSCHED_RANKS": str(spec.ranks),
        "GPUSCHED_NODE": node,
        rank_dir.SCOPE_VARIABLE: scope,
        # Empty hides every GPU from a job that requested none.
        "CUDA_VISIBLE_DEVICES": ",".join(spec.device_uuids),
        # Makes nvidia-smi, CUDA and gpusched number GPUs alike.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if spec.ranks > 1:
        rank_variables |= {
            "MASTER_ADDR": spec.master_addr or "127.0.0.1",
            "MASTER_PORT": str(spec.master_port),
            "WORLD_SIZE": str(spec.ranks),
            "RANK": str(spec.rank),
        }
    if spec.gpu_memory_mb is not None:
        rank_variables["GPUSCHED_GPU_MEMORY_MB"] = str(spec.gpu_memory_mb)
    # Show the output of Python jobs at once, unless they set this themselves; SIGKILL loses what is in a block buffer.
    traced = {"TRACEPARENT": spec.traceparent} if spec.traceparent else {}
    return {"PYTHONUNBUFFERED": "1", **traced, **passed, **spec.environment, **rank_variables}
