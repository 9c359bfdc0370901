"""Tells Django of this app, and the submit path of the scheduler's check (jobs/admission.py)."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"

    def ready(self) -> None:
        from jobs import admission
        from scheduling.services import problem_if_impossible

        admission.register(problem_if_impossible)
