"""Who this node is to the control plane: joins it, and keeps the credential where only its user reads it."""

import os
import secrets
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import httpx
import msgspec

from gpusched.agent import answers
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import Join, Joined, NodeFacts

FILE = "identity.json"
JOIN_SECONDS = 10.0
_decode = msgspec.json.Decoder(Joined).decode


class JoinError(Exception):
    """Why the node cannot join, as a sentence for the person at the terminal. `may_retry`: the server was not there."""

    def __init__(self, sentence: str, may_retry: bool = False) -> None:
        super().__init__(sentence)
        self.may_retry = may_retry


@dataclass(frozen=True)
class Identity:
    """`node_key` is made once per directory: with it, joining again is the same node. No `credential`: not joined."""

    name: str
    node_key: str
    url: str = ""
    node_id: int = 0
    credential: str = ""
    heartbeat_seconds: float = 2.0


def load(directory: Path, name: str) -> Identity:
    """The identity on disk, or a new one that is written down at once, so that its key is never made twice."""
    known = rank_dir.read_own(directory, FILE)
    if known is not None:
        # What a newer agent wrote down means nothing to one that was put back a version.
        return Identity(**{field.name: known[field.name] for field in fields(Identity) if field.name in known})
    fresh = Identity(name=name, node_key=secrets.token_hex(16))
    _save(directory, fresh)
    return fresh


def is_near(url: str) -> bool:
    """Whether what is said to this address stays on the machine."""
    return httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")


def join(directory: Path, known: Identity, url: str, token: str, facts: NodeFacts) -> Identity:
    """Joins (again) and keeps the credential. Raises JoinError."""
    url = url.rstrip("/")
    message = Join(name=known.name, node_key=known.node_key, facts=facts)
    try:
        answer = httpx.post(
            f"{url}/agent/join",
            content=msgspec.json.encode(message),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            timeout=JOIN_SECONDS,
            verify=url.startswith("https:"),
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise JoinError(f"{url} cannot be reached: {error}", may_retry=isinstance(error, httpx.HTTPError)) from error
    if answer.status_code != 200:
        raise JoinError(f"{url} refused node {known.name}: {_sentence(answer)}", may_retry=answer.status_code >= 500)
    try:
        joined = answers.read(_decode, answer.content, url)
    except answers.NotTheServer as error:
        raise JoinError(str(error), may_retry=True) from error
    identity = replace(
        known,
        url=url,
        node_id=joined.node_id,
        credential=joined.credential,
        heartbeat_seconds=joined.heartbeat_seconds,
    )
    _save(directory, identity)
    return identity


def _sentence(answer: httpx.Response) -> str:
    try:
        told = answer.json()
        return ". ".join(part for part in (told["detail"], told.get("next_step")) if part)
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"


def _save(directory: Path, identity: Identity) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = os.umask(0o077)
    try:
        rank_dir.write(directory, FILE, asdict(identity), durable=True)
    finally:
        os.umask(before)
