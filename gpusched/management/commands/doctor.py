"""Check the server's installation, and change nothing."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from gpusched.management.server_doctor import examine
from gpusched.protocol.findings import FAIL, as_json, as_lines


class Command(BaseCommand):
    help = "Check TLS, backups, storage, tokens, clocks and the database; exits with 1 if a check fails."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = examine(settings.ENV, settings.DATA_DIR, datetime.now(UTC))
        self.stdout.write(as_json(findings) if options["json"] else as_lines(findings))
        if any(finding.level == FAIL for finding in findings):
            raise SystemExit(1)
