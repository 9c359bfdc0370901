"""The command that records a cycle: what the scheduler sees at this moment, and the plan that it makes of it."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.cycle import recording, snapshot
from scheduling.engine.whatif.replay import record


class Command(BaseCommand):
    help = "Record what the scheduler sees now, and its plan, as JSON for `manage.py replay`. Writes nothing else."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", default="-", help="where to; - (the default) is stdout")

    def handle(self, *args: Any, file: str, **options: Any) -> None:
        loaded, seen = snapshot.load(is_whole=True)
        content = recording.encode(record(loaded, seen.policy, seen.now))
        if file == "-":
            self.stdout.write(content.decode())
            return
        try:
            Path(file).write_bytes(content + b"\n")
        except OSError as error:
            raise CommandError(f"cannot write {file}: {error.strerror}.") from error
        print(f"{len(loaded.jobs)} waiting and {len(loaded.running)} live jobs recorded in {file}", file=sys.stderr)
