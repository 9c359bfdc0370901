from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0006_fault_index"),
    ]

    operations = [
        migrations.AddField(
            model_name="device",
            name="mig_parent",
            field=models.CharField(
                help_text="The UUID of the GPU that this is an instance of", max_length=80, null=True
            ),
        ),
        migrations.AddField(
            model_name="device",
            name="mig_slices",
            field=models.PositiveSmallIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="reading",
            name="ecc_corrected",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="reading",
            name="ecc_uncorrected",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="reading",
            name="memory_clock_mhz",
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name="reading",
            name="power_limit_watts",
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name="reading",
            name="sm_clock_mhz",
            field=models.IntegerField(null=True),
        ),
    ]
