"""The credentials of one node: which one to present, and how a new one replaces it. Each step is on disk before the
next one, and the server refuses the old credential only after it has seen the new one: an agent that is killed at any
point finds one that works."""

import hashlib
import secrets
from dataclasses import replace
from pathlib import Path

from gpusched.agent import identity as identities
from gpusched.agent.identity import Identity


class Credentials:
    """The identity of a node as stored in its directory, and the credential in use. `presented` is another one than the
    identity's while it is not known which one the server accepts."""

    def __init__(self, directory: Path, identity: Identity) -> None:
        self.identity = identity
        self.presented = identity.credential
        self._directory = directory
        self._refused: set[str] = set()

    @property
    def is_proven(self) -> bool:
        """Return True if the server has accepted the presented credential, and the disk says so."""
        return self.presented == self.identity.credential and not self._refused

    @property
    def offer(self) -> str:
        """Return the hash of the secret that is to replace the present one; empty if there is none."""
        _, _, secret = self.identity.next_credential.partition(".")
        return hashlib.sha256(secret.encode()).hexdigest() if secret else ""

    def prepare_next(self) -> None:
        """Make and store the next credential, unless there is one: the same prefix, by which the server finds the node,
        and a new secret. Writes to the disk."""
        if not self.identity.next_credential:
            prefix, _, _ = self.identity.credential.partition(".")
            self._store(replace(self.identity, next_credential=f"{prefix}.{secrets.token_urlsafe(32)}"))

    def accept(self, offered_hash: str) -> bool:
        """Present the next credential from now on, if the server accepts the secret with this hash. Return False if
        that is not its hash, or it is in use."""
        if not offered_hash or offered_hash != self.offer or self.presented == self.identity.next_credential:
            return False
        self.presented = self.identity.next_credential
        return True

    def worked(self) -> None:
        """Store that the server accepts the presented credential. Keep its predecessor: a server whose database was
        restored from a backup knows that one. Writes to the disk, if it changed."""
        self._refused.clear()
        current = self.identity
        if self.presented == current.credential:
            return
        next_credential = "" if self.presented == current.next_credential else current.next_credential
        self._store(
            replace(
                current,
                credential=self.presented,
                previous_credential=current.credential,
                next_credential=next_credential,
                control_plane=current.plane,
            )
        )

    def try_another(self) -> bool:
        """Present another credential, after the server refused the presented one. Return False if it has refused all
        of them since one worked, and begin anew."""
        self._refused.add(self.presented)
        current = self.identity
        for candidate in (current.credential, current.next_credential, current.previous_credential):
            if candidate and candidate not in self._refused:
                self.presented = candidate
                return True
        self._refused.clear()
        self.presented = current.credential
        return False

    def joined(self, identity: Identity) -> None:
        """Use the identity of a new join, which is stored already."""
        self.identity, self.presented = identity, identity.credential
        self._refused.clear()

    def _store(self, identity: Identity) -> None:
        identities.save(self._directory, identity)
        self.identity = identity
