"""Notify the owners of reservations, in the transaction of the change (the hook `notify`)."""

from gpusched.lib.hooks import hook
from gpusched.protocol.reasons import fix_plurals
from scheduling.reservations.tables import Reservation


def notify(reservation: Reservation, kind: str, text: str, fact: str) -> None:
    """Send a sentence about a reservation to its owner, or to its tenant if it has none. `fact` names what happened:
    the owner gets each fact once."""
    hook("notify")(
        f"reservation_{kind}",
        tenant_id=reservation.tenant_id,
        user_id=reservation.user_id,
        subject_id=reservation.pk,
        data={"text": fix_plurals(f"reservation {reservation.pk} of {reservation.gpus} GPUs {text}")},
        key=f"reservation:{reservation.pk}:{fact}",
    )
