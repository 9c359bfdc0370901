"""Load the server once, for all processes that `up` forks (gpusched/lib/process/parts.py).

A fork inherits only the thread that forks, and shares connections and event loops with its parent. So nothing here
starts a thread, connects to the database, or imports Daphne, which installs Twisted's reactor."""

import os
from importlib import import_module

import django

from gpusched import tracing
from gpusched.lib.process.children import settle_heap

# What gpusched/asgi.py and the commands of the parts import, besides views and middleware; these import the rest.
_MODULES = (
    "autobahn.twisted.websocket",
    "channels.routing",
    "frontend.websocket",
    "gpusched.management.commands.bootstrap",
    "gpusched.management.commands.worker",
    "nodes.agents.websocket",
    "nodes.streams.websocket",
    "notifications.sending.sender",
    "scheduling.worker.broker",
    "scheduling.worker.tasks",
    "twisted.web.http",
)


def load() -> None:
    """Import what the parts need, with the settings of the environment. Raises SettingError."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpusched.settings")
    django.setup()
    from django.conf import settings
    from django.utils.module_loading import import_string

    for name in (settings.ROOT_URLCONF, *_MODULES):
        import_module(name)
    for path in settings.MIDDLEWARE:
        import_string(path)
    tracing.load()
    settle_heap()
