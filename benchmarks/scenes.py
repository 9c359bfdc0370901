"""Clusters for screenshots: empty, four nodes, two hundred with problems; tenants; jobs with each pending reason."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from benchmarks.troubled_fleet import A100, H100, L40S, machines
from gpusched.client import Client
from gpusched.protocol.job_request import JobRequest
from tests.system.people import TENANT_OF, people
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

_TRAINING = r"""i=0; while [ $i -lt 4000 ]; do
printf '\033[2m%s\033[0m step %5d  loss \033[32m0.%04d\033[0m  lr 3.0e-04  tokens/s \033[36m%d\033[0m\n' \
  "$(date +%H:%M:%S)" $((i*50)) $((9000-i*13%6000)) $((151000+i*37%4000))
i=$((i+1)); sleep 5; done"""
_CRASH = r"""printf 'loading checkpoint /data/ckpt/step_18000.pt\nTraceback (most recent call last):\n'
printf '  File "train.py", line 211, in <module>\n    main()\n'
printf '\033[31mtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\033[0m\n'; exit 1"""


def join(stack: Stack, first: int, last: int, nodes: int, name: str) -> subprocess.Popen[bytes]:
    """Start an agent of nodes `first` to `last` of the troubled fleet."""
    environment = {
        **stack.environment(), "GPUSCHED_JOIN_TOKEN": stack.client().join_token().token,
        "GPUSCHED_AGENT_ALLOW_ROOT": "true",
    }  # fmt: skip
    with (stack.directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.troubled_fleet", "--url", stack.url, "--data-dir",
             str(stack.directory / name), "--first", str(first), "--last", str(last), "--nodes", str(nodes)],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    stack.agents.append(process)
    return process


def empty(stack: Stack) -> None:
    people(stack)


def four_nodes(stack: Stack) -> None:
    """Set up four nodes of eight GPUs, three kinds of GPU, half of them busy, with a few problems."""
    clients = people(stack, scale=0.02)
    join(stack, 1, 4, 4, "fleet")
    _wait_online(stack, 4)
    _work(clients, ["ada", "grace"], ["llama-sft", "segment-anything", "eval"], [4, 2, 1, 2], None)
    _ended(clients["grace"])
    for name in ("homework-3", "homework-4"):  # his tenant may hold one GPU
        clients["linus"].submit(["sleep", "7200"], gpus=1, name=name)
    clients["kofi"].submit(["sleep", "7200"], gpus=16, ranks=2, gang_scheduling=True, gpu_model=A100, name="era5")
    _pause_for(lambda: stack.client().status().running_jobs >= 3)


def large_cluster(stack: Stack, nodes: int = 200) -> None:
    """Set up two hundred nodes in racks: most of them busy, some idle though held, some with problems, and a queue."""
    clients = people(stack, scale=nodes / 200)
    join(stack, 1, nodes - 1, nodes, "fleet")
    lost = join(stack, nodes, nodes, nodes, "lost")
    _wait_online(stack, nodes)
    part = nodes / 200
    eights = [8] * round(80 * part)
    _work(clients, ["ada", "ada", "grace", "noor"], ["llama-70b-sft", "diffusion-xl", "grasp-policy"], eights, H100)
    _work(
        clients, ["ada", "grace", "kofi"], ["moe-ablation", "vit-huge", "downscale-era5"], [8] * round(40 * part), A100
    )
    _work(
        clients,
        ["grace", "linus", "noor", "ada"],
        ["eval-mmlu", "detr", "notebook"],
        [1, 2, 4, 1] * round(8 * part),
        A100,
    )
    _work(clients, ["linus", "grace"], ["homework", "inference-canary"], [1, 2] * round(6 * part), L40S)
    _ended(clients["grace"])
    _waiting(clients)
    names = sorted(machines(1, nodes, nodes))
    stack.client().drain(names[nodes // 2])
    stack.client().cordon(names[nodes // 3])
    lost.kill()
    lost.wait()
    _pause_for(lambda: stack.client().status().online_nodes < nodes)


SCENES: dict[str, Callable[[Stack], None]] = {"empty": empty, "four": four_nodes, "many": large_cluster}


def _wait_online(stack: Stack, nodes: int) -> None:
    client = stack.client()
    wait_for(lambda: client.status().online_nodes >= nodes, 240, f"{nodes} nodes online", pause=0.5)


def _pause_for(condition: Callable[[], object]) -> None:
    wait_for(condition, 120, "the scene to be as it should", pause=0.5)


def _work(clients: dict[str, Client], users: list[str], names: list[str], sizes: list[int], model: str | None) -> None:
    """Submit jobs that run long, to the users in turn; the first of each user has a long log."""
    jobs: dict[str, list[JobRequest]] = {}
    for at, gpus in enumerate(sizes):
        user_jobs = jobs.setdefault(users[at % len(users)], [])
        command = ["sh", "-c", _TRAINING] if not user_jobs else ["sleep", "7200"]
        user_jobs.append(JobRequest(
            tenant=TENANT_OF[users[at % len(users)]], name=f"{names[at % len(names)]}-{at}", command=command,
            gpu_count=gpus, gpu_model=model, max_runtime_minutes=480 + 60 * (at % 9), preemptible=False, cpu_cores=4,
        ))  # fmt: skip
    for user, user_jobs in jobs.items():
        clients[user].submit_many(user_jobs)


def _ended(client: Client) -> None:
    completed = client.submit(["sh", "-c", "seq 1 40 | sed 's/^/epoch /'; echo done"], gpus=1, name="resnet-baseline")
    crashed = client.submit(["sh", "-c", _CRASH], gpus=1, name="resnet-batch-4096")
    client.cancel(client.submit(["sleep", "600"], gpus=1, name="wrong-dataset").id)
    _pause_for(lambda: client.get(completed.id).is_final and client.get(crashed.id).is_final)


def _waiting(clients: dict[str, Client]) -> None:
    """Submit jobs that wait, each for another reason."""
    sleep = ["sleep", "7200"]
    for at in range(6):
        clients["kofi"].submit(sleep, gpus=8, gpu_model=H100, name=f"cloud-resolving-{at}", priority=700)
        clients["ada"].submit(sleep, gpus=16, gpu_model=H100, name=f"llama-405b-{at}", ranks=2, gang_scheduling=True)
    for at in range(9):
        clients["linus"].submit(sleep, gpus=4, name=f"homework-4-{at}", priority=100)
    clients["grace"].submit(
        sleep, gpus=8, name="nightly-eval", not_before=(datetime.now(UTC) + timedelta(hours=9)).isoformat()
    )
    clients["grace"].submit(sleep, gpus=2, name="only-there", node_selector={"rack": "r99"})
    clients["noor"].hold(clients["noor"].submit(sleep, gpus=8, name="sim2real-sweep").id)
    first = clients["noor"].submit(sleep, gpus=8, name="collect")
    clients["noor"].submit(sleep, gpus=8, name="train-on-it", depends_on=[first.id])
    clients["kofi"].submit(sleep, gpus=1, gpu_model="B200", name="too-new", gpu_memory_mb=180000)
