from django.db import migrations


class Migration(migrations.Migration):
    """Each bulk that was counted exactly increases it, so that a count from before the bulk is known to be stale
    (jobs/submit/queue_locks.py). A sequence, because its value is visible to all transactions at once."""

    dependencies = [("jobs", "0026_waiting_by_tenant")]

    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE jobs_bulk_generation; SELECT nextval('jobs_bulk_generation')",
            "DROP SEQUENCE jobs_bulk_generation",
        ),
    ]
