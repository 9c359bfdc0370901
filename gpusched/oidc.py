"""What a company's own login means here, as a setting says it: which groups are which roles in which tenants. Pure."""

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
        """Those whose members the groups decide on, and nobody else."""
        return frozenset(tenant for _, tenant, _ in self.grants if tenant)

    @property
    def names_admins(self) -> bool:
        return any(role == ADMIN for _, _, role in self.grants)

    def roles(self, groups: Collection[str]) -> dict[str, str]:
        """Tenant → the highest role that these groups give."""
        found: dict[str, str] = {}
        for group, tenant, role in self.grants:
            if tenant and group in groups and ROLES.index(role) >= ROLES.index(found.get(tenant, ROLES[0])):
                found[tenant] = role
        return found

    def is_admin(self, groups: Collection[str]) -> bool:
        return any(role == ADMIN and group in groups for group, _, role in self.grants)


def parse_groups(text: str) -> GroupMapping:
    """`ml-team=nlp:member, leads=nlp:owner, ops=admin`. ValueError that says what is wrong."""
    grants = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        group, equals, target = (word.strip() for word in part.rpartition("="))
        tenant, colon, role = target.rpartition(":")
        if not group or not equals or not (role in ROLES and tenant if colon else target == ADMIN):
            raise ValueError(f"{part!r} is not like ml-team=nlp:member or ops=admin")
        grants.append((group, tenant, role if colon else ADMIN))
    return GroupMapping(tuple(grants))


def describe(text: str) -> frozenset[str]:
    """A list by commas."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def is_safe(issuer: str) -> bool:
    """By https, or on this machine: what it says is believed."""
    parts = urlsplit(issuer)
    return bool(parts.hostname) and (parts.scheme == "https" or parts.hostname in _LOOPBACK)
