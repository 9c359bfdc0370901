#!/usr/bin/env bash
# Install what the failover test needs, and run it: bash deploy/test_hosts.sh [options of `python -m tests.hosts`]. Needs root on
# Debian. Patroni has an environment of its own, outside the checkout: PostgreSQL's user must be able to execute it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATRONI=/var/tmp/gpusched-patroni
[ "$(id -u)" = 0 ] || { echo "make test-hosts needs root: it creates network namespaces"; exit 1; }
missing=()
for package in etcd-server haproxy iproute2 iptables postgresql python3-venv; do
  grep -q "^Status: install ok" <(dpkg -s "$package" 2>/dev/null) || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
[ -x "$PATRONI/bin/patroni" ] || { /usr/bin/python3 -m venv "$PATRONI"; "$PATRONI/bin/pip" install -q 'patroni[etcd3]==4.1.5' 'psycopg[binary]>=3.2'; }
exec .venv/bin/python -m tests.hosts --patroni "$PATRONI/bin/patroni" "$@"
