from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0020_ascending_indexes")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="signal_count",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
    ]
