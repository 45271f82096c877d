# `make` alone lists what there is to do. Everything but `help` and `clean` sets the checkout up first.

# The checkout's own Python, else 3.11, else any Python 3: builder.setup goes on with 3.11 or says so.
PYTHON = $(or $(shell test -x .venv/bin/python && echo .venv/bin/python),$(shell command -v python3.11 || command -v python3))
SETUP = @test -n "$(PYTHON)" || { echo "set-up: Python 3.11 is missing: there is no python3 on PATH." >&2; exit 1; }; \
	"$(PYTHON)" -m builder.setup
MODEL ?= models/smollm2-135m-instruct
ARGS ?=
# A worker outside this checkout to compare with, as the command that starts it.
PEER ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast chaos test-compat bench lint format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv and the demo model, or go on where that stopped (once about five minutes, then at once)
	$(SETUP)

run: setup ## start the local platform and one worker, and show two answers (ARGS=--once ends after them)
	@exec .venv/bin/worker-vllm local --demo --model $(MODEL) $(ARGS)

test: ## all tests, those that start the real engine too (ARGS="-k name" picks some)
	$(SETUP) --tests
	@.venv/bin/python -m pytest $(ARGS)

test-fast: ## the tests that need no engine and no network, within a minute (two cores; four processes, since many wait)
	$(SETUP) --tests
	@.venv/bin/python -m pytest -m "not engine and not network and not slow" --ignore tests/vllm -p no:schemathesis \
		--numprocesses 4 --dist loadfile $(ARGS)

chaos: ## all that can go wrong, in full: 1,000 jobs under kills and faults, a soak, fuzzing (CHAOS_SEED=N: another run)
	$(SETUP) --tests
	@CHAOS_JOBS=1000 SOAK_JOBS=10000 FUZZ_CASES=20000 .venv/bin/python -m pytest -s \
		tests/chaos tests/fuzz tests/vllm/test_fuzz.py $(ARGS)

test-compat: ## the contract tests on vLLM 0.28 and 0.30, each in an environment of its own
	$(SETUP) --tests
	$(SETUP) --compat 0.28
	.venv-compat-0.28/bin/python -m pytest tests/contract $(wildcard tests/vllm/test_contract*.py) $(ARGS)
	$(SETUP) --compat 0.30
	.venv-compat-0.30/bin/python -m pytest tests/contract $(wildcard tests/vllm/test_contract*.py) $(ARGS)

# On two cores the front end and the engine share the machine: only the ratios within one run mean something.
bench: ## compare this worker, vLLM alone and vLLM's server on the CPU (PEER="COMMAND" adds another worker)
	$(SETUP) --tests
	@PATH="$(CURDIR)/builder/gpu/bin:$$PATH" BENCH_PYTHON=$(CURDIR)/.venv/bin/python .venv/bin/worker-vllm bench \
		--model models/tiny-random --target worker --target raw --target serve $(if $(PEER),--target "peer=worker:$(PEER)") \
		--engine enforce_eager=true --engine max_model_len=512 --env VLLM_CPU_KVCACHE_SPACE=1 \
		--mode streamed,plain --concurrency 16 --max-tokens 64 --rtt-ms 20 --baseline raw \
		--json build/bench/bench.json --text build/bench/bench.txt --svg build/bench/bench.svg $(ARGS)

lint: setup ## check style, format, types and the Dockerfile
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/hadolint Dockerfile

format: setup ## correct style and format where a tool can
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

lock: setup ## write the locks and requirements.txt from builder/requirements (ARGS=--upgrade takes the newest)
	.venv/bin/python -m builder.lock $(ARGS)

clean: ## remove the environments, the models and every cache
	rm -rf .venv .venv-compat-* models .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build src/*.egg-info
	find builder src tests -name __pycache__ -type d -prune -exec rm -rf {} +
