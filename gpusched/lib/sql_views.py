"""The tables of this app as other apps read them in SQL."""

from gpusched.lib.db.views import published
from gpusched.lib.models import AuditEntry

VIEWS = {"lib_audit_entries": published(AuditEntry)}
