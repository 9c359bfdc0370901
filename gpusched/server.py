"""The command `gpusched-server`: Django's command line for this project, from a wheel or a checkout (manage.py)."""

import importlib
import importlib.util
import os
import secrets
import sys

from gpusched.installation import IS_CHECKOUT, SERVER_ROOT

# They sign nothing, and any user may run them: without a key, the settings would generate one in the current directory.
KEYLESS = {"doctor", "install", "ready"}
# They load the apps themselves, once their database has an address, or not at all.
WITHOUT_APPS = {"ready", "up"}
PAGE = "frontend/static/live/live.js"


def main() -> None:
    """Run the management command in sys.argv, such as `up`."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C before `up` handles it itself, or in another command


def _run() -> None:
    if importlib.util.find_spec("django") is None:
        sys.exit("gpusched-server: the server is not installed; run: pip install 'gpusched[server]'")
    if not IS_CHECKOUT and sys.argv[1:2] in (["up"], ["web"]) and not (SERVER_ROOT / PAGE).exists():
        sys.exit(
            "gpusched-server: the page is missing, because it was not built in the checkout from which this was "
            "installed; run `make setup` there, and install again with --force-reinstall"
        )
    if str(SERVER_ROOT) not in sys.path:
        sys.path.insert(0, str(SERVER_ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpusched.settings")
    if sys.argv[1:2] and sys.argv[1] in KEYLESS:
        os.environ.setdefault("GPUSCHED_SECRET_KEY", secrets.token_hex())
    from django.core.management import execute_from_command_line

    from gpusched.env import SettingError

    try:
        if sys.argv[1:2] and sys.argv[1] in WITHOUT_APPS:
            importlib.import_module(f"gpusched.management.commands.{sys.argv[1]}").Command().run_from_argv(sys.argv)
        else:
            execute_from_command_line(sys.argv)
    except SettingError as error:
        sys.exit(f"gpusched: {error}")
