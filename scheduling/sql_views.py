"""Publish the tables of this app as views for the SQL of other apps."""

from gpusched.lib.db.views import published
from scheduling.models import Beat, Cycle

VIEWS = {"scheduling_cycles": published(Cycle), "scheduling_beats": published(Beat)}
