"""The server's settings, with the app of the tests."""

from gpusched.settings import *  # noqa: F403
from gpusched.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.e2e.extra"]
