"""Find the server's apps and templates: in the root of a checkout, or, installed from a wheel, inside this package.

A wheel adds no other top-level name to site-packages than `gpusched`, so `jobs` or `nodes` of other projects stay
free. setup.py puts the server's folders below gpusched/_server. A process of the server has that folder on its path,
because it starts there (`python -m` and `python manage.py`) or because gpusched/server.py adds it."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_IN_WHEEL = _PACKAGE / "_server"
IS_CHECKOUT = not _IN_WHEEL.exists()
SERVER_ROOT = _PACKAGE.parent if IS_CHECKOUT else _IN_WHEEL
