"""Who may listen to the live feed, and to the jobs of which tenants: asked at the start and again and again."""

from typing import NamedTuple

from tenants.auth.page_access import Visible


class Viewer(NamedTuple):
    """Who sees a topic. `user_id` is None where those who see the same tenants see the same."""

    visible: Visible = ()
    user_id: int | None = None
