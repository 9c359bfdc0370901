from django.db import migrations, models


class Migration(migrations.Migration):
    # A constant default: PostgreSQL rewrites no row.
    dependencies = [("jobs", "0016_events_via")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="considered",
            field=models.JSONField(db_default={}, default=dict),
        )
    ]
