"""`manage.py predictions score`: how well the predicted run times of each tenant fit."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.history.learning import KEEP_DAYS
from scheduling.history.scores import Score, scores


class Command(BaseCommand):
    help = "Compare predicted with real run times, per tenant."

    def add_arguments(self, parser: CommandParser) -> None:
        choices = parser.add_subparsers(dest="subcommand", required=True)
        score = choices.add_parser("score", help="coverage, rank correlation and loss beside the median of the user")
        score.add_argument("--days", type=float, default=KEEP_DAYS, help="of the last days, at most 30")
        score.add_argument("--tenant", help="one tenant")
        score.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 < options["days"] <= KEEP_DAYS:
            raise CommandError(f"--days must be above 0 and at most {KEEP_DAYS:g}: older scores are deleted.")
        matches = [row for row in scores(options["days"]) if options["tenant"] in (None, row.tenant)]
        if options["json"]:
            self.stdout.write(json.dumps({"tenants": [row._asdict() for row in matches]}))
        elif not matches:
            self.stdout.write("No job with a prediction has ended yet.")
        else:
            names = f"{'tenant':<24} {'ends':>6} {'coverage':>9} {'rank corr.':>10} {'loss':>6} {'median':>6}  used"
            self.stdout.write(names)
            for row in matches:
                self.stdout.write(_line(row))


def _line(row: Score) -> str:
    correlation = "n/a" if row.rank_correlation is None else f"{row.rank_correlation:.2f}"
    return (
        f"{row.tenant:<24} {row.ends:>6} {row.coverage_percent:>7.1f} % {correlation:>10} {row.loss:>6.3f}"
        f" {row.baseline_loss:>6.3f}  {'yes' if row.is_on else 'no'}"
    )
