"""Tenants with quotas and a member each, for tests and screenshots of pages."""

import json
import subprocess
import sys

from gpusched.client import Client
from tests.system.stack import ROOT, Stack

PASSWORD = "look at this page"
# Tenant, guaranteed GPUs, limit, and its member.
TENANTS: tuple[tuple[str, int, int | None, str], ...] = (
    ("nlp", 320, None, "ada"),
    ("vision", 240, 480, "grace"),
    ("students", 0, 24, "linus"),
    ("robotics", 96, 160, "noor"),
    ("climate", 200, None, "kofi"),
)
TENANT_OF = {user: tenant for tenant, _, _, user in TENANTS}
_PEOPLE = """
import json
from django.contrib.auth.models import User
from tenants.auth.tokens import create_token
from tenants.tenancy import tenants as services
tokens = {}
for name, guaranteed, limit, who in json.loads(%r):
    tier = "opportunistic" if not guaranteed else "standard"
    tenant = services.create_tenant({"name": name, "display_name": name.title(), "tier": tier}, actor="admin",
                                    quota={"guaranteed_gpus": guaranteed, "max_gpus": limit})
    user = User.objects.create_user(who, password=%r)
    services.set_member(tenant, user, "member")
    tokens[who] = create_token(user.pk, "scene", ["read", "write"])[1]
if %r:
    admin = User.objects.get(username="admin")
    admin.set_password(%r)
    admin.save()
print("TOKENS " + json.dumps(tokens))
"""


def people(stack: Stack, scale: float = 1.0, *, is_admin_changed: bool = True) -> dict[str, Client]:
    """Create the tenants, with their quotas times `scale`, and a member of each; return their clients by user name. All
    have PASSWORD, the admin too unless `is_admin_changed` is False."""
    scaled = [(t, round(g * scale), limit and max(1, round(limit * scale)), user) for t, g, limit, user in TENANTS]
    script = _PEOPLE % (json.dumps(scaled), PASSWORD, is_admin_changed, PASSWORD)
    result = subprocess.run(
        [sys.executable, "manage.py", "shell", "-v", "0", "-c", script],
        cwd=ROOT, env=stack.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    tokens: dict[str, str] = json.loads(result.stdout.split("TOKENS ", 1)[1])
    return {user: Client(stack.url, token, tenant=TENANT_OF[user]) for user, token in tokens.items()}
