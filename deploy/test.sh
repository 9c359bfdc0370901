#!/usr/bin/env bash
# Run every test. As root on Debian, install chromium, gcc, podman, docker and pebble first, and fail if a test is skipped because
# one is missing. Otherwise print which tools are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
missing=()
command -v chromium >/dev/null 2>&1 || missing+=(chromium)
command -v gcc >/dev/null 2>&1 || missing+=(gcc libc6-dev)
command -v pebble >/dev/null 2>&1 || missing+=(pebble)
# The test images consist of busybox; sandboxes with old cgroups can run containers only with runc.
for tool in podman catatonit runc; do command -v $tool >/dev/null 2>&1 || missing+=($tool); done
# Not where services start by themselves: docker's would change the machine's network.
[ -d /run/systemd/system ] || command -v dockerd >/dev/null 2>&1 || missing+=(docker.io)
grep -q "^Status: install ok" <(dpkg -s busybox-static 2>/dev/null) || missing+=(busybox-static)
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }
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
browser=
trap '[ -z "$browser" ] || kill "$browser" 2>/dev/null || true; rm -rf "$output"' EXIT
# Run all tiers, so that one run reports every failure, and repeat the failures at the end.
tier() {
  local name=$1; shift
  echo "== $name"
  "$@" 2>&1 | tee "$output/$name" || failed+=("$name")
}
pytest=(.venv/bin/pytest -q --durations=25 --dist loadfile --no-loadscope-reorder)
# In processes of its own, because Playwright keeps an event loop, in which Django's database tests cannot run. They load only
# the files with tests of the page: to import all files takes seconds of processor time.
page="the page in Chromium"
"${pytest[@]}" -n 2 -m browser "$@" $(grep -rlE --include="test_*.py" "mark\.browser\b" tests | sort) >"$output/$page" 2>&1 &
browser=$!
tier "page, unit tests" npm --prefix frontend run --silent test
# Six processes on two cores in all, as tests wait for processes much of their time. Longest files first (tests/conftest.py).
tier "all but the page" "${pytest[@]}" -n 4 -m "not browser" --ignore=tests/browser "$@"
wait "$browser" || failed+=("$page")
browser=
echo "== $page"
cat "$output/$page"
if [ ${#failed[@]} -gt 0 ]; then
  for name in "${failed[@]}"; do
    echo "== failed: $name"
    { grep -aE -A 12 "FAIL|^(FAILED|ERROR) |^E  " "$output/$name" || tail -n 60 "$output/$name"; } | tail -n 60
  done
  exit 1
fi
