"""What a job's process gets: its command, directory and environment, and nothing of the agent's own."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from gpusched.agent import config
from gpusched.agent.containers import runtimes
from gpusched.agent.isolation.confinement import Confinement, confined
from gpusched.agent.rank_files import rank_dir, secret_files
from gpusched.protocol.agent_messages import RankSpec

# Of the agent's environment: how this machine is set up, never a token or a setting.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


def job_spec(directory: Path, spec: RankSpec, node: str, how: Confinement) -> dict[str, Any]:
    """What a supervisor needs to run a rank; writes the script beside it if there is one, and makes room for what is
    temporary, both for the user that the rank runs as."""
    scope = secrets.token_hex(16)
    fact = confined(how, directory, spec, scope)
    account = fact.get("account")
    argv = list(spec.argv)
    if spec.script is not None:
        script = directory / rank_dir.SCRIPT
        text = spec.script if spec.script.startswith("#!") else f"#!/bin/sh\n{spec.script}"
        script.write_text(text)
        script.chmod(0o700)
        argv = [str(script), *argv]
    with contextlib.suppress(FileExistsError):  # a preparation was cut short
        os.mkdir(directory / rank_dir.TMP, 0o700)
    if account:
        _give(directory, account)
    made: dict[str, Any] = {
        "argv": argv,
        "environment": _environment(directory, spec, node, scope, account),
        "workdir": spec.workdir or (account["home"] if account else os.path.expanduser("~")),
        "max_runtime_seconds": spec.max_runtime_seconds,
        "limit_version": spec.limit_version,
        "grace_seconds": spec.grace_seconds,
        **fact,
    }
    if spec.unfit:
        made["unfit"] = spec.unfit
    if spec.secrets and "refusal" not in fact:
        made[secret_files.KEY] = secret_files.write(directory, spec.secrets, account)
        made["environment"]["GPUSCHED_SECRETS_DIR"] = made[secret_files.KEY]
    if spec.image is None or "refusal" in fact:
        return made
    try:
        return runtimes.containerize(directory, spec, made, config.current())
    except runtimes.Refused as refused:
        return {**made, "unfit": str(refused)}


def _give(directory: Path, account: dict[str, Any]) -> None:
    """Lets the job's user read what is for it. The directory and all that steers the job stay root's: the user may pass
    and read the notice, no more. The checkpoint file is there from the start, as old as can be, to be touched."""
    checkpoint = directory / rank_dir.CHECKPOINT
    checkpoint.touch(0o600)
    os.utime(checkpoint, (0, 0))
    os.chown(directory, -1, account["gid"])
    os.chmod(directory, 0o710)  # noqa: S103 - nobody else's  # nosec B103
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
    own = {
        "GPUSCHED_JOB_ID": str(spec.job_id),
        "GPUSCHED_ATTEMPT": str(spec.attempt),
        "GPUSCHED_RANK": str(spec.rank),
        "GPUSCHED_RANKS": str(spec.ranks),
        "GPUSCHED_NODE": node,
        rank_dir.SCOPE_VARIABLE: scope,
        # Empty hides every GPU from a job that asked for none.
        "CUDA_VISIBLE_DEVICES": ",".join(spec.device_uuids),
        # So that the numbering of nvidia-smi, of CUDA and of gpusched agree.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if spec.ranks > 1:
        own |= {
            "MASTER_ADDR": spec.master_addr or "127.0.0.1",
            "MASTER_PORT": str(spec.master_port),
            "WORLD_SIZE": str(spec.ranks),
            "RANK": str(spec.rank),
        }
    if spec.gpu_memory_mb is not None:
        own["GPUSCHED_GPU_MEMORY_MB"] = str(spec.gpu_memory_mb)
    # Output of Python jobs shows at once, unless they say otherwise; what a block buffer holds is lost at SIGKILL.
    traced = {"TRACEPARENT": spec.traceparent} if spec.traceparent else {}
    return {"PYTHONUNBUFFERED": "1", **traced, **passed, **spec.environment, **own}
