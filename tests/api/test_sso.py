"""The company's own login where it is switched off, and what its settings may say."""

import subprocess
import sys

import pytest
from django.test import Client

from gpusched import oidc
from gpusched.env import SettingError, read

GIVEN = {
    "GPUSCHED_OIDC_ISSUER": "https://login.example",
    "GPUSCHED_OIDC_CLIENT_ID": "x",
    "GPUSCHED_OIDC_CLIENT_SECRET": "y",
}


@pytest.mark.django_db
def test_disabled_sso_has_no_address_and_no_button():
    assert [Client().get(path).status_code for path in ("/login/sso/", "/login/sso/callback/", "/accounts/login/")] == [
        404
    ] * 3
    assert b"Log in with" not in Client().get("/login/").content


def test_disabled_sso_is_not_loaded():
    """Start-up is no slower for it."""
    code = "import django, sys; django.setup(); import gpusched.urls; print([m for m in sys.modules if m in ('allauth', 'jwt')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"DJANGO_SETTINGS_MODULE": "gpusched.settings", "GPUSCHED_SECRET_KEY": "x" * 50})  # fmt: skip
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"GPUSCHED_OIDC_ISSUER": "http://login.example"}, "OIDC_ISSUER"),
        ({"GPUSCHED_OIDC_CLIENT_SECRET": ""}, "OIDC_CLIENT_SECRET"),
        ({"GPUSCHED_OIDC_GROUPS": "ml=nlp:king"}, "OIDC_GROUPS"),
        ({"GPUSCHED_OIDC_GROUPS": "ml=nlp"}, "OIDC_GROUPS"),
        ({"GPUSCHED_OIDC_GROUPS": "=admin"}, "OIDC_GROUPS"),
        ({"GPUSCHED_OIDC_ISSUER": "", "GPUSCHED_PASSWORD_LOGIN_ONLY_FOR": "root"}, "PASSWORD_LOGIN_ONLY_FOR"),
    ],
)
def test_settings_that_admit_no_user_or_every_user_are_rejected(more, named):
    read(GIVEN)
    with pytest.raises(SettingError, match=named):
        read({**GIVEN, **more})


def test_highest_role_of_the_groups_counts():
    rules = oidc.parse_groups(
        "ml = nlp:member, cn=leads,ops=admin, leads=nlp:owner, all=vision:viewer".replace("cn=leads,", "")
    )
    assert rules.roles({"ml", "leads"}) == {"nlp": "owner"}
    assert rules.roles({"leads", "ml", "all"}) == {"nlp": "owner", "vision": "viewer"}
    assert (rules.is_admin({"ops"}), rules.is_admin({"ml"})) == (True, False)
    assert rules.tenants == {"nlp", "vision"}
    assert oidc.parse_groups("a=b=nlp:member").roles({"a=b"}) == {"nlp": "member"}
