# Every target works as the first command of a fresh clone: it makes the environment that it needs, once.
# Settings: make PYTHON=/path/to/python3.12 …, make test-real SEED=7

ifndef PYTHON
PYTHON := $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
endif
SEED ?= 20261121
SCALE ?= 1

VENV := .venv
VENV_42 := .venv-spark42
RUN := $(VENV)/bin/python
RUN_42 := $(VENV_42)/bin/python
# Spark starts Java from JAVA_HOME, and its Python workers from PYSPARK_PYTHON (else whatever python3 is on the PATH).
WITH_JAVA = JAVA_HOME="$$($(RUN) -m pyspark_mqstore.java)" || exit 2; export JAVA_HOME;
export PYSPARK_PYTHON := $(CURDIR)/$(RUN)
export SPARK_LOCAL_IP ?= 127.0.0.1

# One process has the Spark session, the other runs what needs none.
TWO_PROCESSES := -n 2
# Tests against the real systems wait for brokers and nodes most of the time.
THREE_PROCESSES := -n 3
# What Spark hands over, plans, pushes down, writes and prints: the rest of the connector's tests sees no version.
DIFFERS := $(addprefix tests/connector/,test_errors.py test_schema.py test_filters.py test_planning.py test_find.py \
	test_spark_worker.py test_spark_bad_input.py test_spark_views.py test_spark_write.py test_rabbitmq_write.py \
	test_spark_streams.py) tests/contract/test_source_reads.py tests/contract/test_source_writes.py \
	tests/contract/test_streams.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-fast test-real test-real-full bench bench-kafka lint format pages docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ready-demo ## read a real RocketMQ store as a table, with a plot, and write one, in two minutes
	@$(WITH_JAVA) $(RUN) examples/demo.py

test: $(VENV)/.ready-test $(VENV_42)/.ready-test ## every test but the real ones, on PySpark 4.3, and the connector's on 4.2
	@echo "mqstore: all tests, PySpark 4.3, seed $(SEED)"
	@$(WITH_JAVA) MQSTORE_SEED=$(SEED) $(RUN) -m pytest $(TWO_PROCESSES)
	@echo "mqstore: what differs between versions of Spark, PySpark 4.2, the oldest PyArrow, with the compiled loops"
	@$(WITH_JAVA) MQSTORE_SEED=$(SEED) MQSTORE_COMPILED=always PYSPARK_PYTHON="$(CURDIR)/$(RUN_42)" \
		$(RUN_42) -m pytest $(TWO_PROCESSES) $(DIFFERS)

test-fast: $(VENV)/.ready-test ## the tests that need no Java but the long ones, in a minute and a half
	@MQSTORE_SEED=$(SEED) $(RUN) -m pytest $(TWO_PROCESSES) -m "not real and not spark and not sampled and not long"

test-real: $(VENV)/.ready-test ## a seeded sample against the real RocketMQ and RabbitMQ, 30 minutes at most (Maven, JDK)
	@echo "mqstore: tests against the real systems, seed $(SEED) (again: make test-real SEED=$(SEED))"
	@$(WITH_JAVA) MQSTORE_SEED=$(SEED) MQSTORE_COMPILED=always \
		$(RUN) -m pytest $(THREE_PROCESSES) -m real tests/real --timeout 900 --session-timeout 1800 --durations 15

test-real-full: $(VENV)/.ready-test $(VENV_42)/.ready-test ## the same with 200 stores, 500 scripts and 200,000 rows, without a time limit
	@echo "mqstore: tests against the real systems, 200 stores, seed $(SEED) (again: make test-real-full SEED=$(SEED))"
	@$(WITH_JAVA) MQSTORE_SEED=$(SEED) MQSTORE_COMPILED=always MQSTORE_STORES=200 MQSTORE_LOOKUPS=100 MQSTORE_SCRIPTS=500 MQSTORE_KILLS=30 \
		MQSTORE_STREAM_KILLS=100 MQSTORE_STREAM_SPARK_KILLS=100 MQSTORE_STREAM_BATCHES=100 MQSTORE_STREAM_FLIPS=200 MQSTORE_LIVE_S=60 MQSTORE_HISTORIES=100 \
		MQSTORE_ROWS=200000 MQSTORE_WRITES=30 MQSTORE_COPIES=100 MQSTORE_BROKERS=12 MQSTORE_COMPACTED=8 MQSTORE_BATCHED=8 MQSTORE_LEDGERS=12 MQSTORE_STOPS=1 MQSTORE_LOSSES=50 MQSTORE_HARMS=99 MQSTORE_FLIPS=80000 \
		MQSTORE_SPARKS="3.5 4.0 4.1 4.2 4.3" MQSTORE_CONTAINER=1 MQSTORE_RELEASE_4=25 MQSTORE_AZURE=1 MQSTORE_GOOGLE=1 MQSTORE_HDFS=1 \
		$(RUN) -m pytest -m real tests/real --timeout 0
	@echo "mqstore: all of what make test takes samples of, and all of the connector's tests on PySpark 4.2"
	@$(WITH_JAVA) MQSTORE_SEED=$(SEED) MQSTORE_COMPILED=always MQSTORE_WHOLE=1 $(RUN) -m pytest -m sampled --timeout 0
	@$(WITH_JAVA) MQSTORE_SEED=$(SEED) MQSTORE_BATCHES=10000 MQSTORE_SPARK_LIMITS=1 \
		$(RUN) -m pytest tests/rocketmq/test_stream_job.py tests/connector/test_stream_limits.py --timeout 0
	@$(WITH_JAVA) MQSTORE_SEED=$(SEED) MQSTORE_SPARK_LIMITS=1 PYSPARK_PYTHON="$(CURDIR)/$(RUN_42)" \
		$(RUN_42) -m pytest tests/connector

bench: $(VENV)/.ready-bench ## measure, print the ratios, write benchmarks/results.md and a plot
	@$(WITH_JAVA) $(RUN) -m benchmarks

bench-kafka: $(VENV)/.ready-bench ## scan and write beside a Kafka broker and Spark's connector, which Maven fetches
	@$(WITH_JAVA) $(RUN) -m benchmarks kafka --scale $(SCALE) --results .cache/bench-kafka

lint: $(VENV)/.ready-lint ## ruff and mypy --strict
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy

format: $(VENV)/.ready-lint ## put the code into ruff's format
	@$(RUN) -m ruff format .

pages: $(VENV)/.ready-test ## write the tables, hexdumps and module lists of docs/ anew
	@$(RUN) -m tools.format_pages && $(RUN) -m tools.house_page

docs: $(VENV)/.ready-docs ## build the documentation into site/, failing on a broken link
	@$(RUN) -m mkdocs build --strict && echo "mqstore: open site/index.html"

clean: ## remove environments, caches and what the demo wrote
	rm -rf $(VENV) $(VENV_42) build dist site *.egg-info demo-output spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extras: a second run installs nothing, a change of the requirements installs again.
define environment
	@test -n "$(PYTHON)" || { echo "mqstore: no Python 3.11 or newer found: make PYTHON=/path/to/python3.11 …" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mqstore: $(PYTHON) is not a Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 2; }
	@$(PYTHON) tools/environment.py
endef
NEEDS := setup.cfg pyproject.toml tools/environment.py

$(VENV)/.ready-demo: $(NEEDS)
	$(environment) $(VENV) spark,demo "pyspark == 4.3.*"
	@touch $@

$(VENV)/.ready-test: $(NEEDS)
	$(environment) $(VENV) spark,demo,test "pyspark == 4.3.*"
	@touch $@

$(VENV)/.ready-bench: $(NEEDS)
	$(environment) $(VENV) spark,bench "pyspark == 4.3.*"
	@touch $@

$(VENV)/.ready-lint: $(NEEDS)
	$(environment) $(VENV) spark,test,lint "pyspark == 4.3.*"
	@touch $@

$(VENV)/.ready-docs: $(NEEDS)
	$(environment) $(VENV) docs
	@touch $@

$(VENV_42)/.ready-test: $(NEEDS)
	$(environment) $(VENV_42) spark,test "pyspark == 4.2.*" "pyarrow == 18.*"
	@touch $@
