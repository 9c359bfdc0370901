"""How a process of the server loads."""

import gc


def test_garbage_is_collected_once_the_apps_are_loaded() -> None:
    """The settings disable it, for a faster start."""
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000
