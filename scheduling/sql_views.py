"""Publish the tables of this app as views for the SQL of other apps."""

from gpusched.lib.db.views import published
from scheduling.models import Beat, Cycle, Reservation, ReservationUse, ReservedDevice, Term

VIEWS = {
    "scheduling_cycles": published(Cycle),
    "scheduling_beats": published(Beat),
    "scheduling_terms": published(Term),
    "scheduling_reservations": published(Reservation),
    "scheduling_reserved_devices": published(ReservedDevice),
    "scheduling_reservation_uses": published(ReservationUse),
}
