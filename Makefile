# Each target does its own set-up. Needs Python 3.11 or newer, and Node 20; without Node, it comes from PyPI.
PYTHON ?= python3
DATA ?= $(CURDIR)/.gpusched
# Each target expands DATA, so that `demo` has its own default. The variable overrides a settings file, which can name the
# directory for `up`. So it is exported there only if DATA is set or there is no settings file.
ifneq ($(if $(GPUSCHED_CONFIG),$(origin DATA)),file)
export GPUSCHED_DATA_DIR ?= $(DATA)
endif
PY = .venv/bin/python
# With this variable, every process would recompile all its modules at each start: seconds instead of tenths.
unexport PYTHONDONTWRITEBYTECODE
export TLS

.PHONY: demo up test test-hosts check bench release setup setup-dev clean openapi reference rules client

demo: DATA := $(DATA)-demo
demo: export GPUSCHED_DATA_DIR ?= $(DATA)
demo: setup        ## a simulated fleet, three tenants and a trickle of real jobs
	@exec $(PY) manage.py up --demo

up: setup          ## database, web server, workers and an agent on this machine; TLS=NAME: with HTTPS
	@exec $(PY) manage.py up $(if $(TLS),--tls $(TLS))

test: setup-dev    ## every test
	@bash deploy/test.sh

test-hosts: setup-dev ## failover of several hosts, on network namespaces (root on Debian): ROUNDS=50
	@bash deploy/test_hosts.sh $(if $(ROUNDS),--rounds $(ROUNDS))

check: setup-dev   ## style, types, import contracts, TypeScript
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/bandit -q -c pyproject.toml -r gpusched tenants jobs nodes scheduling serving notifications frontend deploy manage.py
	$(PY) deploy/check_tree.py
	$(PY) deploy/check_api.py
	$(PY) -m deploy.reference --check
	$(PY) -m deploy.sync_client --check
	. deploy/node.sh && cd frontend && npm run --silent check

bench: setup-dev   ## the figures of the README
	@set -e; for name in latency submit start_1600 agents memory; do echo "== $$name"; $(PY) benchmarks/$$name.py; done

release: setup-dev ## build the wheel in dist/, check it, and list its parts and their licences (SBOM)
	$(PY) deploy/release.py

reference: openapi ## generate docs/reference/ and the marked parts of other documents
	$(PY) -m deploy.reference

client: setup-dev  ## generate gpusched/client/sync/ from gpusched/client/aio/
	$(PY) -m deploy.sync_client

rules: setup-dev   ## generate frontend/src/ui/constants.ts, the values that the page's script shares with the server
	DJANGO_SETTINGS_MODULE=gpusched.settings $(PY) -m frontend.shared_constants

openapi: setup-dev ## generate docs/openapi.json, which `make check` compares for breaking changes
	$(PY) manage.py spectacular --format openapi-json --validate --fail-on-warn --file docs/openapi.json

setup:             ## .venv with the libraries to run gpusched, and the built page
	@bash deploy/setup.sh

setup-dev:
	@bash deploy/setup.sh dev

clean:
	rm -rf .venv build frontend/node_modules frontend/static/live
