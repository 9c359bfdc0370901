"""Record a cycle: the scheduler's snapshot at this moment, and its plan."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.cycle import recording, snapshot
from scheduling.engine.whatif.replay import record


class Command(BaseCommand):
    help = "Record the scheduler's present snapshot and plan as JSON for `manage.py replay`. Write nothing else."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", default="-", help="the output file; - (the default) is stdout")

    def handle(self, *args: Any, file: str, **options: Any) -> None:
        loaded, basis = snapshot.load(is_whole=True)
        content = recording.encode(record(loaded, basis.policy, basis.now))
        if file == "-":
            self.stdout.write(content.decode())
            return
        try:
            Path(file).write_bytes(content + b"\n")
        except OSError as error:
            raise CommandError(f"cannot write {file}: {error.strerror}.") from error
        print(f"{len(loaded.jobs)} waiting and {len(loaded.running)} live jobs recorded in {file}", file=sys.stderr)
