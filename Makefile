# Each target does all its own set-up. Needs Python 3.11 or newer; Node 20 or, lacking it, the one that comes from PyPI.
PYTHON ?= python3
DATA ?= $(CURDIR)/.gpusched
# Expanded by each target, so that `demo` has a default of its own. The variable wins over a settings file, which may name
# the directory for `up`: there it is exported only if DATA is given or there is no such file.
ifneq ($(if $(GPUSCHED_CONFIG),$(origin DATA)),file)
export GPUSCHED_DATA_DIR ?= $(DATA)
endif
PY = .venv/bin/python
# Where this is set, every process would compile all its modules again at each start: seconds instead of tenths.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo up test check bench setup setup-dev clean openapi reference rules

demo: DATA := $(DATA)-demo
demo: export GPUSCHED_DATA_DIR ?= $(DATA)
demo: setup        ## a pretend fleet, three tenants and a trickle of real jobs
	@exec $(PY) manage.py up --demo

up: setup          ## the real thing on this machine
	@exec $(PY) manage.py up

test: setup-dev    ## every test
	@bash deploy/test.sh

check: setup-dev   ## style, types, import contracts, TypeScript
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/bandit -q -c pyproject.toml -r gpusched tenants jobs nodes scheduling frontend deploy manage.py
	$(PY) deploy/check_tree.py
	$(PY) deploy/check_api.py
	$(PY) -m deploy.reference --check
	. deploy/node.sh && cd frontend && npm run --silent check

bench: setup-dev   ## the figures of the README
	@set -e; for name in latency submit start_1600 agents memory; do echo "== $$name"; $(PY) benchmarks/$$name.py; done

reference: openapi ## writes what docs/ have from the code: docs/reference/, and marked parts of others
	$(PY) -m deploy.reference

rules: setup-dev   ## writes frontend/src/ui/constants.ts, what the page's script shares with the server
	DJANGO_SETTINGS_MODULE=gpusched.settings $(PY) -m frontend.shared_constants

openapi: setup-dev ## writes docs/openapi.json, against which breaking changes are found
	$(PY) manage.py spectacular --format openapi-json --validate --fail-on-warn --file docs/openapi.json

setup:             ## .venv with all that running needs, and the built page
	@bash deploy/setup.sh

setup-dev:
	@bash deploy/setup.sh dev

clean:
	rm -rf .venv build frontend/node_modules frontend/static/live
