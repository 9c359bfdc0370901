"""A new column of all jobs, and another type of what each request by a token reads."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial"), ("tenants", "0001_initial")]
    operations = [
        migrations.RunSQL(
            "ALTER TABLE jobs_job ADD COLUMN extra integer NOT NULL DEFAULT 0",
            "ALTER TABLE jobs_job DROP COLUMN extra",
        ),
        migrations.RunSQL(
            "ALTER TABLE tenants_apitoken ALTER COLUMN secret_hash TYPE text",
            "ALTER TABLE tenants_apitoken ALTER COLUMN secret_hash TYPE varchar(64)",
        ),
    ]
