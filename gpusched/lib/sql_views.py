"""Publish the tables of this app as views for the SQL of other apps."""

from gpusched.lib.db.views import published
from gpusched.lib.models import AuditEntry

VIEWS = {"lib_audit_entries": published(AuditEntry)}
