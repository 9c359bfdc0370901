"""`manage.py simulate placement|jobs`: pass each subcommand to its module of scheduling.simulator."""

from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.simulator.errors import InputError

SUBCOMMANDS = {
    "placement": ("how densely a placement policy fills a cluster", "scheduling.simulator.cli.placement"),
    "jobs": ("how long the jobs of a trace wait under a policy", "scheduling.simulator.cli.jobs"),
}


class Command(BaseCommand):
    help = "Run the real engine in simulated time, on a trace or on your own history."
    requires_system_checks = []  # it needs neither a database nor Django

    def add_arguments(self, parser: CommandParser) -> None:
        choices = parser.add_subparsers(dest="subcommand", required=True, parser_class=_LazyParser)
        for name, (text, module) in SUBCOMMANDS.items():
            choices.add_parser(name, help=text, description=text).set_defaults(module=module)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            import_module(options["module"]).run(options, self.stdout)
        except InputError as problem:
            raise CommandError(str(problem)) from problem
        except OSError as problem:
            raise CommandError(f"{problem.filename}: {problem.strerror}.") from problem


class _LazyParser(CommandParser):
    """Import the module of a subcommand only when that one is chosen."""

    _is_filled = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        if not self._is_filled:
            self._is_filled = True
            import_module(self.get_default("module")).add_arguments(self)
        return super().parse_known_args(args, namespace)
