#!/usr/bin/env bash
# Rewrite the two lock files from pyproject.toml: exact versions with hashes, without registry addresses.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { .venv/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url "$@"; }
compile --upgrade --extra server --extra tracing --extra demo -o requirements.txt
compile --upgrade --extra server --extra tracing --extra demo --extra dev --constraint requirements.txt -o requirements-dev.txt
