"""The first start creates an admin and a tenant; later ones start with whatever accounts there are."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from gpusched.management.commands import bootstrap
from tenants.models import Membership, Tenant
from tests.factories import make_user

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _data_dir(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path


def run(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    call_command("bootstrap")
    facts: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return facts


def test_second_start_creates_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys)["admin_password"]
    assert run(capsys)["admin_password"] is None
    assert (User.objects.count(), Tenant.objects.count()) == (1, 1)


def test_server_starts_when_the_only_user_named_admin_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as one whom single sign-on has demoted, or who chose that name there."""
    make_user("admin")
    assert run(capsys)["admin_password"] is None
    assert not User.objects.filter(is_superuser=True).exists()


def test_first_tenant_belongs_to_the_admin_whatever_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    root = make_user("root", admin=True)
    run(capsys)
    assert Membership.objects.get().user == root


def test_start_that_ends_before_the_token_of_the_admin_is_written_is_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise there is an admin with an unknown password, and no token."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(bootstrap, "_write_token", killed)
        with pytest.raises(KeyboardInterrupt):
            run(capsys)
    assert run(capsys)["admin_password"]


def test_start_that_ends_after_the_admin_is_created_is_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(bootstrap, "_default_tenant", killed)
        with pytest.raises(KeyboardInterrupt):
            run(capsys)
    assert run(capsys)["admin_password"]
