#!/usr/bin/env bash
# Run every test. As root on Debian, install Chromium, gcc, podman, docker and pebble first, and fail if a test is skipped because
# one is missing. Otherwise print which tools are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }
missing=()
# The full browser takes longer: use it only where the shell cannot be installed (tests/system/chromium.py).
command -v chromium-headless-shell >/dev/null 2>&1 || { ! may_install && command -v chromium >/dev/null 2>&1; } \
  || missing+=(chromium-headless-shell)
command -v gcc >/dev/null 2>&1 || missing+=(gcc libc6-dev)
command -v pebble >/dev/null 2>&1 || missing+=(pebble)
# The test images consist of busybox; sandboxes with old cgroups can run containers only with runc.
for tool in podman catatonit runc; do command -v $tool >/dev/null 2>&1 || missing+=($tool); done
# Not where services start by themselves: docker's would change the machine's network.
[ -d /run/systemd/system ] || command -v dockerd >/dev/null 2>&1 || missing+=(docker.io)
grep -q "^Status: install ok" <(dpkg -s busybox-static 2>/dev/null) || missing+=(busybox-static)
if may_install; then export TESTS_HAVE_TOOLS=1; fi
if [ ${#missing[@]} -gt 0 ]; then
  if may_install; then
    echo "installing ${missing[*]}"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null 2>&1 \
      || echo "could not install ${missing[*]}"
  else
    echo "not installed, and this is not root on Debian: ${missing[*]}. The tests that need them are skipped."
  fi
fi
unset GPUSCHED_DATABASE_URL DATABASE_URL GPUSCHED_URL GPUSCHED_TOKEN GPUSCHED_TOKEN_FILE
. deploy/node.sh
failed=()
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
# Run all tiers, so that one run reports every failure, and repeat the failures at the end.
tier() {
  local name=$1; shift
  echo "== $name"
  "$@" 2>&1 | tee "$output/$name" || failed+=("$name")
}
# Three processes on two cores, as tests wait for processes much of their time. Longest files first (tests/conftest.py).
pytest() { .venv/bin/pytest -q --durations=25 -n 3 --dist loadfile --no-loadscope-reorder "$@"; }
# The files with tests of this mark. To import all files would cost each process more than ten seconds of processor time.
marked() { grep -rlE --include="test_*.py" "mark\.$1\b" tests | sort; }
tier "page, unit tests" npm --prefix frontend run --silent test
tier "without and with the database" pytest -m "not e2e and not browser" --ignore=tests/e2e --ignore=tests/browser "$@"
tier "the whole system as real processes" pytest -m "e2e and not browser" "$@" $(marked e2e)
# Separate, because Playwright keeps an event loop in its process, in which Django's database tests cannot run.
tier "the page in Chromium" pytest -m browser "$@" $(marked browser)
if [ ${#failed[@]} -gt 0 ]; then
  for name in "${failed[@]}"; do
    echo "== failed: $name"
    { grep -aE -A 12 "FAIL|^(FAILED|ERROR) |^E  " "$output/$name" || tail -n 60 "$output/$name"; } | tail -n 60
  done
  exit 1
fi
