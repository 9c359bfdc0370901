"""A job's row is rewritten when its reason changes: with room on its page no index need be touched, and the indexes of
(tenant, id) and (user, id) serve tenant and user alone as well."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_initial")]

    operations = [
        migrations.AlterField(
            model_name="job",
            name="tenant",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="tenants.tenant",
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="user",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.RunSQL("ALTER TABLE jobs_job SET (fillfactor = 70)", "ALTER TABLE jobs_job RESET (fillfactor)"),
    ]
