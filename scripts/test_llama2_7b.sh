#!/bin/sh
# Runs the tests that any model can pass on Llama 2 7B (Q4_K_M, 4.1 GB), which it fetches once from the Hugging Face hub.
# The script has not been run yet. It needs 6 GB of memory, and a GPU if it is to end within an hour. .llorch-test.toml
# says on which device the tests' workers compute.
#
# Usage: test_llama2_7b.sh [PYTEST ARGUMENT…]     such as tests/backends, or -k serving
# The model is kept in LLORCH_MODELS_DIR. Its licence is Meta's: https://ai.meta.com/llama/license
set -eu

MODEL=hf:TheBloke/Llama-2-7B-GGUF::file=llama-2-7b.Q4_K_M.gguf

cd "$(dirname "$0")/.."
[ -e .venv/installed-dev ] || { echo "test_llama2_7b: what the tests need is not in .venv: run 'make check' once" >&2; exit 1; }
path=$(scripts/download_model.sh "$MODEL")
LLORCH_TEST_MODEL_PATH=$path exec .venv/bin/python -m pytest -m "model and not soak and not peer and not parity and not clients" "$@"
