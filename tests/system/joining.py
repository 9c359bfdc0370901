"""Join the control plane as a node, without an agent process."""

import httpx
import msgspec

from gpusched.agent.host.machine import PretendMachine, PretendSpec
from gpusched.protocol.agent_messages import Join, Joined
from tests.system.stack import A100

SPEC = PretendSpec(nodes=1, model=A100, gpu_memory_mb=81920, gpus=8, cpu_cores=128, memory_mb=1 << 20)


def join(url: str, token: str, name: str) -> str:
    message = Join(name=name, node_key=f"key-of-{name}", facts=PretendMachine(name, SPEC).facts())
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(f"{url}/agent/join", content=msgspec.json.encode(message), headers=headers, timeout=30)
    answer.raise_for_status()
    return msgspec.json.decode(answer.content, type=Joined).credential
