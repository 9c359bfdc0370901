"""The mapping of a provider's groups to roles in tenants, as a setting defines it. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

ROLES = ("viewer", "member", "owner")
ADMIN = "admin"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class GroupMapping:
    """`grants`: (group, tenant, role), with an empty tenant for admins."""

    grants: tuple[tuple[str, str, str], ...] = ()

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants whose members are decided by groups alone."""
        return frozenset(tenant for _, tenant, _ in self.grants if tenant)

    @property
    def names_admins(self) -> bool:
        return any(role == ADMIN for _, _, role in self.grants)

    def roles(self, groups: Collection[str]) -> dict[str, str]:
        """Return tenant → the highest role that these groups grant."""
        roles: dict[str, str] = {}
        for group, tenant, role in self.grants:
            if tenant and group in groups and ROLES.index(role) >= ROLES.index(roles.get(tenant, ROLES[0])):
                roles[tenant] = role
        return roles

    def is_admin(self, groups: Collection[str]) -> bool:
        return any(role == ADMIN and group in groups for group, _, role in self.grants)


def parse_groups(text: str) -> GroupMapping:
    """Parse `ml-team=nlp:member, leads=nlp:owner, ops=admin`. Raises ValueError with a sentence."""
    grants = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        group, equals, target = (word.strip() for word in part.rpartition("="))
        tenant, colon, role = target.rpartition(":")
        if not group or not equals or not (role in ROLES and tenant if colon else target == ADMIN):
            raise ValueError(f"{part!r} is not like ml-team=nlp:member or ops=admin")
        grants.append((group, tenant, role if colon else ADMIN))
    return GroupMapping(tuple(grants))


def describe(text: str) -> frozenset[str]:
    """Parse a list separated by commas."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def is_safe(issuer: str) -> bool:
    """Return True for HTTPS or this machine: the issuer's statements are trusted."""
    parts = urlsplit(issuer)
    return bool(parts.hostname) and (parts.scheme == "https" or parts.hostname in _LOOPBACK)
