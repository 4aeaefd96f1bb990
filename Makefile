# make test and make demo set up what they need themselves: a virtual environment with the pinned
# packages of requirements.lock, and for real servers Kafka's jars and MinIO in the user's cache.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# make demo STACK=real runs it on three brokers and MinIO.
STACK ?= mock
ARGS ?=
# Of make chaos; without a seed by chance.
MINUTES ?= 10
SEED ?=
# Processes side by side. Tests mostly wait for servers, of which each process has its own (3 GiB); on
# servers that the environment names all are in one, for tests break them and heal them. A simulation
# takes a core.
JOBS ?=
TEST_JOBS := $(or $(JOBS),$(if $(BLOBMSG_DEV_STACK)$(BLOBMSG_DEV_BOOTSTRAP),0,3))
SIM_JOBS := $(or $(JOBS),2)

# In CI a missing tool is an error; elsewhere the tests that need it are skipped by name.
IF_POSSIBLE := $(if $(filter 1 true yes,$(CI)),,--if-possible)

.DEFAULT_GOAL := help
.PHONY: help setup lock fmt lint types unit parts frameworks test test-lowest planted mutation stock-suite sanitize demo demo-spark
.PHONY: bench bench-workloads bench-memory bench-spark chaos
.PHONY: sim stack-up stack-down docs clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) ## the virtual environment, from requirements.lock

NATIVE := $(wildcard blobmsg/native/*.[ch])

# --no-deps: the lock names all there is. Without it pip's resolver may look at a newer release of
# what another package asks for by an extra (coverage[toml]), and refuse it as unpinned.
$(STAMP): requirements.lock pyproject.toml $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	@tools/timed packages $(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	@tools/timed build $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

lock: ## requirements.lock, requirements-lowest.lock, tests/frameworks/*.lock anew
	PYTHON=$(PYTHON) tools/lock

fmt: $(STAMP) ## format, and mend what lint can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: $(STAMP) ## format and lint, checked only
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(STAMP) ## mypy, pyright, and whether the public types are complete
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python tools/verify_public_types.py

unit: $(STAMP) ## tests that need no servers
	$(BIN)/python -m pytest -m "not integration and not chaos and not slow" $(ARGS)

parts: $(STAMP)
	@tools/timed parts $(BIN)/blobmsg dev install $(IF_POSSIBLE)

frameworks: $(STAMP) # the environments of tests/frameworks, each with the packages of its lock file
	@tools/timed frameworks $(BIN)/python -m tests.helpers.framework_environment $(IF_POSSIBLE)

# In the order of tests/conftest.py: xdist would put files of few tests last, which are the longest ones.
SIDE_BY_SIDE := -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

test: $(STAMP) parts frameworks ## everything, on real Kafka and S3
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

# In a virtual environment of its own. `tests/compat` compares with the newest stock client alone: older
# ones have fewer calls and other texts, and 2.8.0 crashes where a subclass never ran its `__init__`.
LOWEST := .venv-lowest
test-lowest: ## the tests but tests/compat, with the oldest packages that are allowed
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and \
	    "the oldest packages were built for Python 3.11: make test-lowest PYTHON=python3.11")'
	$(MAKE) --no-print-directory parts VENV=$(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements-lowest.lock
	$(LOWEST)/bin/python -m pytest $(SIDE_BY_SIDE) --ignore tests/compat \
	    --ignore tests/frameworks $(ARGS)

planted: $(STAMP) parts ## guarantees broken on purpose: the tests must notice (ARGS="14 22")
	$(BIN)/python tools/planted.py $(ARGS)

mutation: $(STAMP) ## the cores changed a little: the tests must notice (ARGS="notifier --share 0.2")
	$(BIN)/python tools/mutation.py $(ARGS)

# CHECKOUT is a copy of confluent-kafka-python's repository.
stock-suite: $(STAMP) parts ## the stock client's own tests, on it and on blobmsg (CHECKOUT=folder)
	$(BIN)/python tools/stock_suite.py $(CHECKOUT) $(ARGS)

chaos: $(STAMP) parts ## hurt clients, brokers and store by a seeded schedule (MINUTES=10 SEED=1)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# SEEDS=100000 JOBS=2 goes on where it was interrupted.
SEEDS ?= 1000
sim: $(STAMP) ## the whole system on virtual time, SEEDS=1000 of them
	$(BIN)/python -m blobmsg.sim --seeds 0:$(SEEDS) --jobs $(SIM_JOBS) $(ARGS)

sanitize: $(STAMP) ## the tests of the code in C, with the address and undefined-behaviour sanitizers
	PYTHON=$(abspath $(BIN)/python) tools/sanitize $(ARGS)

demo: $(STAMP) ## real events through the drop-in; STACK=real for real Kafka and S3
	$(BIN)/blobmsg demo --stack $(STACK) $(ARGS)

demo-spark: $(STAMP) ## a Spark job through the store, and by Spark alone; needs Java 17
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	    echo "== by Spark's own shuffle" && $(BIN)/python examples/spark_two_stages.py --native $(ARGS) && \
	    echo "== through the store" && \
	    BLOBMSG_STORE_URL="file://$$folder" $(BIN)/python examples/spark_two_stages.py $(ARGS)

bench: $(STAMP) parts ## blobmsg beside the stock client on the same cluster
	$(BIN)/python -m bench.throughput $(ARGS)

bench-workloads: $(STAMP) parts ## other record sizes, more partitions, compression
	$(BIN)/python -m bench.workloads $(ARGS)

bench-memory: $(STAMP) parts ## memory of clients through 5 minutes without the store (ARGS="--outage-s 600")
	$(BIN)/python -m bench.memory $(ARGS)

bench-spark: $(STAMP) parts ## Spark's shuffle and source beside native ones and spark-s3-shuffle
	$(BIN)/python -m bench.spark $(ARGS)
	$(BIN)/python -m bench.spark_source $(ARGS)

stack-up: $(STAMP) ## three brokers and a store that stay
	$(BIN)/blobmsg dev up $(ARGS)

stack-down: $(STAMP) ## stop them
	$(BIN)/blobmsg dev down $(ARGS)

docs: $(STAMP) ## the pages that are written by programs
	$(BIN)/python -m blobmsg.settings_page > docs/settings.md

clean: ## everything that was made here, not the user's cache
	rm -rf $(VENV) $(LOWEST) build dist bench/out .mutation .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov
	rm -rf .coverage *.egg-info blobmsg/native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
