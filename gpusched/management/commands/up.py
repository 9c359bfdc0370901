"""Run everything on one machine: database, web, workers and agents, as children that end with this process."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpusched import env
from gpusched.lib.process.one_machine import PRETEND_FLEET, Machine, StartError


class Command(BaseCommand):
    help = "Starts database, web server, workers and a local agent; Ctrl-C stops them all."
    requires_system_checks = []  # `manage.py check` is for developers; here it would double the start time

    def add_arguments(self, parser: ArgumentParser) -> None:
        # Django's settings come later, once the database has an address (Machine).
        self.env = env.read()
        parser.add_argument("--demo", action="store_true", help="a pretend fleet, three tenants and a trickle of jobs")
        parser.add_argument("--port", type=int, default=self.env.http_port, help="port of the web server")
        parser.add_argument("--tls", metavar="NAME", default=self.env.tls_name, help="serve https://NAME by Caddy")
        parser.add_argument("--no-agent", action="store_true", help="no agent on this machine")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 <= options["port"] <= 65_535:
            raise CommandError(f"--port {options['port']} is not from 1 to 65535; 0: any free one")
        machine = Machine(
            self.env.data_dir.absolute(),
            self.env,
            options["port"],
            demo=options["demo"],
            agent=not options["no_agent"],
            log=self._print,
            fleet=PRETEND_FLEET if options["demo"] else (),
            tls_name=options["tls"],
        )
        try:
            machine.run()
        except StartError as error:
            raise CommandError(str(error)) from error

    def _print(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()  # flush files and pipes, too, for programs that wait for the line
