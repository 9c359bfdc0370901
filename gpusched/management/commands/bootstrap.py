"""Prepare a database: migrations, the first admin, a first tenant, and the credentials of this machine.

Prints a line of JSON for `up`. Safe to repeat: passwords and tokens are created once."""

import json
import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connection, transaction
from django.db.models import Q

from gpusched.lib.db.locks import Lock, locked
from gpusched.lib.ownership import give_to_owner
from gpusched.management.commands import migrate
from gpusched.protocol.states import Role, Scope
from nodes.inventory.join import create_join_token
from tenants.auth.tokens import create_token
from tenants.models import Tenant
from tenants.tenancy.tenants import create_tenant, set_member

# Three tenants that show the effects of quotas, guarantees and weights.
DEMO_TENANTS: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"name": "nlp", "display_name": "Language", "weight": 2.0}, {"max_gpus": 20, "guaranteed_gpus": 8}, "ada"),
    ({"name": "vision", "display_name": "Vision", "weight": 1.0}, {"max_gpus": 16, "guaranteed_gpus": 4}, "grace"),
    ({"name": "students", "display_name": "Students", "tier": "opportunistic"}, {"max_gpus": 8}, "linus"),
)  # fmt: skip


class Command(BaseCommand):
    help = "Migrate the database and create the first admin, tenant and tokens."
    requires_system_checks = []  # they would double the start-up time

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--demo", action="store_true", help="also create the demo's tenants and users")
        parser.add_argument("--join-token-hours", type=float, default=1, help="validity of this machine's join token")

    def handle(self, *args: Any, **options: Any) -> None:
        if _is_migration_needed():
            call_command("migrate", verbosity=0, interactive=False)
        # One transaction: after a start that fails here, the next one creates the admin, and knows the password.
        with locked(Lock.BOOTSTRAP), transaction.atomic():
            facts: dict[str, Any] = {"admin_password": _admin()}
            _default_tenant()
            if options["demo"]:
                for fields, quota, username in DEMO_TENANTS:
                    _demo_tenant(fields, quota, username)
            facts["join_token"] = create_join_token(options["join_token_hours"], "this machine")[1]
        self.stdout.write(json.dumps(facts))


def _is_migration_needed() -> bool:
    try:
        migrate.require_usable()
        return migrate.is_needed()
    except OperationalError as error:
        place = f" at {host}" if (host := connection.settings_dict["HOST"]) else ""
        raise CommandError(f"cannot use the database{place}: {error}; check GPUSCHED_DATABASE_URL") from error


def _admin() -> str | None:
    """Create the admin if there is none and no other account has the name. Return its new password, else None."""
    if User.objects.filter(Q(is_superuser=True) | Q(username="admin")).exists():
        return None
    password = secrets.token_urlsafe(12)
    admin = User.objects.create_superuser("admin", password=password)
    _write_token(admin, "admin", list(Scope))
    return password


def _default_tenant() -> None:
    """Create a tenant without limits, owned by the first admin, so that a new installation can run jobs at once."""
    if not Tenant.objects.exists():
        tenant = create_tenant({"name": "default", "display_name": "Default"}, actor="bootstrap")
        if admin := User.objects.filter(is_superuser=True).order_by("pk").first():
            set_member(tenant, admin, Role.OWNER)


def _demo_tenant(fields: dict[str, Any], quota: dict[str, Any], username: str) -> None:
    if Tenant.objects.filter(name=fields["name"]).exists():
        return
    tenant = create_tenant(fields, actor="bootstrap", quota=quota)
    user = User.objects.create_user(username, password=secrets.token_urlsafe(12))
    set_member(tenant, user, Role.MEMBER)
    _write_token(user, username, [Scope.READ, Scope.WRITE])


def _write_token(user: User, name: str, scopes: list[Scope]) -> None:
    """Write a token to a file that only this user can read, for the command line and the demo."""
    directory = Path(settings.DATA_DIR) / "tokens"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / name
    path.touch(mode=0o600)
    give_to_owner(directory, path)
    path.write_text(create_token(user.pk, f"{name} on this machine", list(scopes))[1] + "\n")
