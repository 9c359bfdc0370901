"""This node's identity on the control plane: join, and store the credential where only its user can read it."""

import hashlib
import os
import secrets
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import httpx
import msgspec

from gpusched import tls
from gpusched.agent import answers, http_client
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.addresses import fault, redirect_target, split
from gpusched.protocol.agent_messages import Join, Joined, NodeFacts

FILE = "identity.json"
_PATH = "/agent/join"
_decode = msgspec.json.Decoder(Joined).decode


class JoinError(Exception):
    """The node cannot join. The text is a sentence for the person at the terminal. `may_retry`: the server was
    unreachable."""

    def __init__(self, sentence: str, may_retry: bool = False) -> None:
        super().__init__(sentence)
        self.may_retry = may_retry


@dataclass(frozen=True)
class Identity:
    """`node_key` is created once per directory: joining again with it yields the same node. No `credential`: not
    joined. `url`: one address of the control plane, or several, separated by commas. `ca_file`: the authorities to
    trust, if not the machine's. `certificate_file`: the node's own certificate with its key, for a server that asks for
    one. `next_credential`, `previous_credential`: see gpusched/agent/credentials.py. `control_plane`: what `plane`
    was when the node joined, if its credential was replaced since."""

    name: str
    node_key: str
    url: str = ""
    node_id: int = 0
    credential: str = ""
    heartbeat_seconds: float = 2.0
    ca_file: str = ""
    certificate_file: str = ""
    next_credential: str = ""
    previous_credential: str = ""
    control_plane: str = ""

    @property
    def plane(self) -> str:
        """Return a name of the control plane for the records of ranks; empty if not joined. It is the same for as long
        as the node does not join again: with another name, ranks that ended would count as never seen."""
        if not self.credential:
            return ""
        return self.control_plane or hashlib.sha256(self.credential.encode()).hexdigest()[:12]


def load(directory: Path, name: str) -> Identity:
    """Return the identity on disk, or a new one that is stored at once, so that its key is never created twice."""
    if (identity := stored(directory)) is None:
        identity = Identity(name=name, node_key=secrets.token_hex(16))
        save(directory, identity)
    return identity


def stored(directory: Path) -> Identity | None:
    """Return the identity on disk; None if there is none. Raises OSError."""
    record = rank_dir.read_own(directory, FILE)
    if record is None:
        return None
    # Ignore the fields of a newer agent: this one may be a downgrade.
    return Identity(**{field.name: record[field.name] for field in fields(Identity) if field.name in record})


def with_tls(identity: Identity, ca_file: str, certificate_file: str) -> Identity:
    """Return the identity with these files, absolute; an empty name keeps the present one."""
    return replace(
        identity,
        ca_file=str(Path(ca_file).absolute()) if ca_file else identity.ca_file,
        certificate_file=str(Path(certificate_file).absolute()) if certificate_file else identity.certificate_file,
    )


def join(directory: Path, previous: Identity, url: str, token: str, facts: NodeFacts) -> Identity:
    """Join, or join again, at the first of the addresses that answers, and store the credential. Raises JoinError."""
    token = _clean(token)
    urls = addresses_in(url)
    joined = None
    sentences: list[str] = []
    for address in urls:
        try:
            joined = _join_at(address, previous, token, facts)
            break
        except JoinError as error:
            sentences.append(str(error))
            if not error.may_retry:
                raise
    if joined is None:
        raise JoinError("; ".join(sentences), may_retry=True)
    identity = replace(
        previous,
        url=",".join(urls),
        node_id=joined.node_id,
        credential=joined.credential,
        next_credential="",
        previous_credential="",
        control_plane="",
        heartbeat_seconds=joined.heartbeat_seconds,
    )
    save(directory, identity)
    return identity


def addresses_in(text: str) -> tuple[str, ...]:
    """Return the addresses in a text, at least one. Raises JoinError for what can be none."""
    urls = split(text)
    for url in urls or (text,):
        if why := fault(url):
            raise JoinError(f"{why}; use one like https://gpusched.example:8000")
    return urls


def _clean(token: str) -> str:
    """Return the token without the spaces around it. Raises JoinError, which does not repeat the token."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        what = "has characters that no token has" if token else "is empty"
        raise JoinError(f"the join token {what}; print one by `gpusched node join-token`, and copy all of it")
    return token


def _join_at(url: str, previous: Identity, token: str, facts: NodeFacts) -> Joined:
    message = Join(name=previous.name, node_key=previous.node_key, facts=facts)
    try:
        with http_client.blocking(url, previous.ca_file, previous.certificate_file) as http:
            answer = http.post(
                f"{url}{_PATH}",
                content=msgspec.json.encode(message),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            )
    except tls.TlsFileError as error:
        raise JoinError(str(error)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if fault := tls.fault(url, error):
            raise JoinError("; ".join(fault)) from error
        text = tls.reason(error) or type(error).__name__
        raise JoinError(f"{url} cannot be reached: {text}", may_retry=isinstance(error, httpx.HTTPError)) from error
    if target := answer.headers.get("location", ""):  # not followed: the token would go there
        raise JoinError(f"{url} redirects to {redirect_target(target, _PATH)}; join with that address")
    if answer.status_code != 200:
        raise JoinError(f"{url} refused node {previous.name}: {_sentence(answer)}", may_retry=answer.status_code >= 500)
    try:
        return answers.read(_decode, answer.content, url)
    except answers.NotTheServer as error:
        raise JoinError(str(error), may_retry=True) from error


def _sentence(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        return ". ".join(part for part in (problem["detail"], problem.get("next_step")) if part)
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"


def save(directory: Path, identity: Identity) -> None:
    """Store the identity durably."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    previous = os.umask(0o077)
    try:
        rank_dir.write(directory, FILE, asdict(identity), durable=True)
    finally:
        os.umask(previous)
