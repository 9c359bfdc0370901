"""The tables of this app as other apps read them in SQL."""

from gpusched.lib.db.views import published
from scheduling.models import Beat, Cycle

VIEWS = {"scheduling_cycles": published(Cycle), "scheduling_beats": published(Beat)}
