"""Viewers of the live feed and the tenants whose jobs they can see, checked at connect and then periodically."""

from typing import NamedTuple

from tenants.auth.page_access import Visible


class Viewer(NamedTuple):
    """A viewer of a topic. `user_id` is None for topics whose rows depend only on the visible tenants."""

    visible: Visible = ()
    user_id: int | None = None
