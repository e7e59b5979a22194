# `make` says what there is. What is made is kept in .venv and .dev, and in the cache folder that README.md names.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
SDK := .dev/codeflare-sdk
SDK_LOCKS := tests/cluster/sdk
SDK_PIP := -m pip install --quiet --disable-pip-version-check --require-hashes
SDK_RELEASES := 0.12.1 0.16.0
SDK_NEWEST := 0.40.1
CHROMIUM := /usr/bin/chromium /usr/bin/chromedriver
AXE := .dev/axe
WORKERS ?= 4
# Else every worker would rewrite the assertions of all test modules again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS)
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/appwrapper-dispatcher

.PHONY: help
help: ## Say what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## Make .venv with everything pinned (once; other targets do it by themselves)
	@echo "$(VENV) is ready"

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what requirements.lock pins into $(VENV) (the first time: 400 MB, about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: lock
lock: ## Pin the newest versions that pyproject.toml allows in requirements.lock (needs uv)
	$(UV) pip compile --upgrade --universal --generate-hashes --python-version 3.11 --extra dev \
		--no-emit-find-links -o requirements.lock pyproject.toml

.PHONY: fmt
fmt: $(READY) ## Format, and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: check
check: $(READY) ## Format, lint, types, imports; changes nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: test
test: control-plane operators codeflare-sdk ## The tests, and today's part of the sweeps, on a real Postgres and real control planes
	$(PYTEST) -m "not exhaustive" --sweeps today --durations=30

.PHONY: test-all
test-all: control-plane operators prometheus helm codeflare-sdk web-browser ## All tests, also the exhaustive ones; run it once before an issue is called resolved
	$(PYTEST) -m "not alone" --durations=30
	$(BIN)/pytest -m alone

.PHONY: test-unit
test-unit: $(READY) ## The tests that need neither, without the sweeps
	$(PYTEST) -m "not exhaustive and not sweep" tests/unit

.PHONY: test-some
test-some: $(READY) ## The tests in FILES="tests/unit/test_text.py ..." in one process, while you write
	@test -n "$(FILES)" || { echo 'which? make test-some FILES="tests/unit/test_text.py"' >&2; exit 1; }
	$(BIN)/pytest $(FILES)

.PHONY: test-postgres
test-postgres: $(READY) ## The tests that need Postgres
	$(PYTEST) tests/postgres

.PHONY: test-cluster
test-cluster: control-plane operators helm codeflare-sdk ## The tests that need a control plane
	$(PYTEST) tests/cluster

# Each is a fact of the wire. Left out are the tests of what newer API servers word otherwise, or know and 1.30 does not.
OLDEST_POSTGRES ?= /usr/lib/postgresql/15/bin
OLDEST := DISPATCHER_TEST_KUBERNETES=1.30 DISPATCHER_TEST_KUBERAY=1.5 DISPATCHER_TEST_POSTGRES_BINARIES=$(OLDEST_POSTGRES)
NEWEST := DISPATCHER_TEST_KUBERNETES=1.37 DISPATCHER_TEST_KUBERAY=1.6
WIRE_TESTS := $(addprefix tests/cluster/, test_handover.py test_e2e_blog.py test_e2e_lives.py test_e2e_restarts.py \
	test_from_mcad.py test_crd_memberclusters.py test_immutability.py test_versions.py test_author.py \
	test_two_dispatchers.py test_pod_defaults.py test_wrapped_watches.py test_growth_gates.py test_kuberay.py \
	members/test_members_wires.py members/test_members_rights.py) \
	$(addprefix tests/postgres/, test_embedded_postgres.py test_migrations_expand.py test_migrations.py test_leadership.py test_commit.py test_partitions.py test_reader.py test_archive.py)
NEWER := test_appwrapper_stored_before_the_rules or test_state_and_deletion_of_a_job_are_seen

.PHONY: test-versions
test-versions: $(READY) ## The tests of the wire on Kubernetes 1.30, KubeRay 1.5 and Postgres 15, and on 1.37, 1.6 and 18 (compiles each once)
	@test -x $(OLDEST_POSTGRES)/initdb || \
		{ echo "no Postgres 15: apt-get install postgresql-15, or set OLDEST_POSTGRES to its folder of programs" >&2; exit 1; }
	@echo "1 of 2: the oldest, Kubernetes 1.30, KubeRay 1.5 and the Postgres of $(OLDEST_POSTGRES)"
	$(OLDEST) $(BIN)/python -m testbed build >/dev/null
	$(OLDEST) $(PYTEST) -k "not ($(NEWER))" $(WIRE_TESTS)
	@echo "2 of 2: the newest, Kubernetes 1.37, KubeRay 1.6 and the Postgres of the tests, 18"
	$(NEWEST) $(BIN)/python -m testbed build >/dev/null
	$(NEWEST) $(PYTEST) $(WIRE_TESTS) tests/cluster/test_crds.py

# Any image with the same entry point as this one will do.
POSTGRES_IMAGE ?= postgres:18-alpine
# Of a commit, of accounts without passwords, of a dump and its restoration, and of a dispatcher on a control plane.
CONTAINER_TESTS := $(addprefix tests/postgres/, test_container_postgres.py test_commit.py test_reader.py test_restored.py) \
	tests/cluster/test_e2e_blog.py

.PHONY: test-image
test-image: control-plane ## Build the image and have it dispatch the example; test on a Postgres container (needs a Docker engine)
	docker build --network host --tag appwrapper-dispatcher:test .
	DISPATCHER_TEST_IMAGE=appwrapper-dispatcher:test $(BIN)/pytest tests/cluster/install/test_image.py
	DISPATCHER_TEST_POSTGRES_IMAGE=$(POSTGRES_IMAGE) CI=1 $(BIN)/pytest $(CONTAINER_TESTS)

.PHONY: demo
demo: $(READY) ## Two gangs, GPUs for one: watch the second wait and go (cold: about eleven minutes)
	@$(BIN)/python -m testbed.demo

.PHONY: demo-hub
demo-hub: $(READY) ## A hub, two members, ten gangs: watch what becomes of them when one cluster dies (a minute)
	@$(BIN)/python -m testbed.demo_hub

.PHONY: demo-queues
demo-queues: $(READY) ## Three teams, sixteen GPUs: watch a team borrow, and others take back what is theirs (a minute)
	@$(BIN)/python -m testbed.demo_queues

.PHONY: demo-provisioning
demo-provisioning: $(READY) ## A GPU pool without nodes: watch a gang request them, wait, and start whole (a minute)
	@$(BIN)/python -m testbed.demo_provisioning

.PHONY: dev
dev: $(READY) ## A cluster with three users, left running, to play with by kubectl and psql; Ctrl-C ends it
	@$(BIN)/python -m testbed.dev

.PHONY: dev-hub
dev-hub: $(READY) ## A hub with two member clusters, left running, for drains and losses by hand; Ctrl-C ends it
	@$(BIN)/python -m testbed.dev_hub

.PHONY: docs
docs: $(READY) ## Write docs/lifecycle.md anew, the answers in docs/history.md, and the screens of docs/cli.md and of tests
	@$(BIN)/python docs/generate_lifecycle.py
	@PYTHONPATH=. $(BIN)/python docs/generate_history.py
	@$(BIN)/python -m tests.screens

.PHONY: bench
bench: control-plane ## Measure dispatched AppWrappers per second, also beside three analysts of a small history, and grants of growth
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.analytics --only dispatch \
		--appwrappers 10000 --days 60 --count 150 --singles 10 --rounds 1
	$(BIN)/python -m benchmarks.grants

.PHONY: bench-baseline
bench-baseline: control-plane ## Measure Kueue's baseline: 15,000 gangs in 30 queues of 5 trees (some minutes)
	$(BIN)/python -m benchmarks.baseline

.PHONY: bench-history
bench-history: control-plane ## Measure answers about, and dispatch beside, a million AppWrappers of history (half an hour)
	$(BIN)/python -m benchmarks.analytics

.PHONY: bench-growth
bench-growth: $(READY) ## Measure a cycle, a restart and memory with up to 50,000 queued (six minutes)
	$(BIN)/python -m benchmarks.growth

.PHONY: bench-largest
bench-largest: $(READY) ## Measure what 100 of the largest AppWrappers, and 60 too large ones, cost those beside them
	$(BIN)/python -m benchmarks.largest

.PHONY: bench-canary
bench-canary: control-plane ## Measure the wait of one that fits after 1000 that do not were deleted
	$(BIN)/python -m benchmarks.canary

.PHONY: bench-start
bench-start: control-plane ## Measure each command, at most 0.5 s, and a dispatcher until it leads (three minutes)
	$(BIN)/python -m benchmarks.start

.PHONY: bench-handover
bench-handover: control-plane ## Measure for how long nothing is dispatched while the leader is stopped or killed (two minutes)
	$(BIN)/python -m benchmarks.handover

.PHONY: bench-members
bench-members: control-plane ## Measure 1, 2 and 4 members, and what one that hangs costs the others (six minutes)
	$(BIN)/python -m benchmarks.members

.PHONY: bench-binding
bench-binding: control-plane ## Count gangs of which kube-scheduler leaves a pod Pending, on a full cluster (25 minutes)
	$(BIN)/python -m benchmarks.binding

.PHONY: bench-packing
bench-packing: $(READY) ## Measure how well large gangs fit mixed nodes that are kept full (three minutes)
	$(BIN)/python -m benchmarks.packing

.PHONY: bench-grants
bench-grants: control-plane ## Measure for how long pods of autoscaling Ray clusters wait for their grant (one minute)
	$(BIN)/python -m benchmarks.grants

.PHONY: bench-elastic
bench-elastic: $(READY) ## Measure what autoscaling Ray clusters get and lose, with growth granted or charged (two minutes)
	$(BIN)/python -m benchmarks.elastic

# The tests' own output hides how a build goes, and their time limits would end it.
.PHONY: control-plane
control-plane: $(READY)
	@$(BIN)/python -m testbed build >/dev/null

.PHONY: prometheus
prometheus: $(READY) ## Build Prometheus and promtool for the tests of alerts (once: four minutes; test-all does it)
	@$(BIN)/python -m testbed build --prometheus >/dev/null

# After the control plane, with which it shares most of what is compiled.
.PHONY: helm
helm: control-plane ## Build Helm for the tests of the chart (once: a minute; test-all does it)
	@$(BIN)/python -m testbed build --helm >/dev/null

# Each needs libraries of its own, of which the control plane shares few.
.PHONY: operators
operators: control-plane ## Build the operators of JobSets, PyTorchJobs, Kueue and others for tests (once: some minutes; other targets do it)
	@$(BIN)/python -m testbed build --operators >/dev/null

.PHONY: codeflare-sdk
codeflare-sdk: $(READY) $(SDK)/ready ## Install MCAD's client for its tests (once: 1.1 GB, two minutes; other targets do it)

# The releases of MCAD's time need the same, so they share an environment, and each release has a folder of its own beside
# it. The newest release needs an environment of its own. Packages without which a release can be imported and used are
# left out; dependencies.in and dependencies-0.40.1.in name them.
$(SDK)/ready: $(wildcard $(SDK_LOCKS)/*.lock) | $(READY)
	@rm -rf $(SDK)
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
		echo "the CodeFlare SDK needs Ray 2.7, and that Python 3.11: its tests will be skipped"; \
	else \
		echo "installing the CodeFlare SDK into $(SDK)"; \
		$(BIN)/python -m venv $(SDK)/env && \
		$(BIN)/python -m venv $(SDK)/env-$(SDK_NEWEST) && \
		$(SDK)/env/bin/python $(SDK_PIP) -r $(SDK_LOCKS)/dependencies.lock && \
		$(SDK)/env-$(SDK_NEWEST)/bin/python $(SDK_PIP) -r $(SDK_LOCKS)/dependencies-$(SDK_NEWEST).lock && \
		for release in $(SDK_RELEASES) $(SDK_NEWEST); do \
			$(SDK)/env/bin/python $(SDK_PIP) --no-deps --target $(SDK)/$$release \
				-r $(SDK_LOCKS)/codeflare-sdk-$$release.lock || exit; \
		done && touch $@; \
	fi

.PHONY: web-browser
web-browser: $(READY) $(AXE)/ready ## Install Debian's Chromium and axe-core for the tests of the page (once, as root: 400 MB; test-all does it)
	@if ls $(CHROMIUM) >/dev/null 2>&1; then \
		:; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends chromium chromium-driver; \
	else \
		echo "no $(CHROMIUM): until \`apt-get install chromium chromium-driver\` has been run as root on Debian," \
			"the tests in a browser will be skipped"; \
	fi

# Only a script is taken from the package. Playwright, which it needs otherwise, brings a browser's driver of its own.
$(AXE)/ready: tests/browser/axe.lock | $(READY)
	@rm -rf $(AXE)
	@$(BIN)/python $(SDK_PIP) --no-deps --target $(AXE) -r $<
	@touch $@

.PHONY: web-screenshots
web-screenshots: web-browser ## Test the page in a browser, and write the screenshots that docs/web.md shows
	DISPATCHER_TEST_SCREENSHOTS=docs/web $(BIN)/pytest tests/browser

.PHONY: wheel
wheel: $(READY) ## Make the wheel of the commands and the dispatcher alone in dist/: no Helm, and nothing is compiled
	@rm -rf dist
	@$(BIN)/python -m release --wheel dist

.PHONY: release
release: helm ## Make wheel, source, chart, krew plugin, bill of materials and their sums in dist/, the same bytes each time
	@rm -rf dist
	@$(BIN)/python -m release dist

.PHONY: clean
clean: ## End what runs, and remove .venv, .dev and the tools' caches
	@for state in .dev .dev/dev .dev/demo .dev/demo-hub .dev/demo-queues .dev/demo-provisioning; do \
		if [ -d $$state/pids ] && [ -x $(BIN)/python ]; then $(BIN)/python -m testbed down --state $$state; fi; done
	rm -rf $(VENV) .dev .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "kept: $(CACHE), which takes minutes to build again"
