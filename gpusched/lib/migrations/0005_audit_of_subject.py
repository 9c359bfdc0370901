from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # Nobody waits while it is built. What was cut short leaves an invalid index behind, which is made anew.
    atomic = False

    dependencies = [("lib", "0004_audit_entries")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS audit_of_subject", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="auditentry", index=models.Index(fields=["subject", "id"], name="audit_of_subject")
        ),
    ]
