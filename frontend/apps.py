"""Django app configuration."""

from django.apps import AppConfig, apps

from frontend.ui import field_names

# The apps with pages in the admin.
NAMED = ("tenants", "scheduling")


class FrontendConfig(AppConfig):
    name = "frontend"

    def import_models(self) -> None:
        """Name the fields of the models of these apps. This app loads last, and before Django builds forms."""
        super().import_models()
        for label in NAMED:
            field_names.name_fields(apps.get_app_config(label).models.values())
