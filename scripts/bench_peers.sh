#!/bin/sh
# Measures this worker beside llama-server and llama-bench of the same llama.cpp, which are built first, once, in the
# user's cache; writes the report to .bench/. Usage: bench_peers.sh [options of `python -m tools.bench load`]
# On two idle processors; some forty minutes.
set -eu

cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
tools=$(PYTHON="$python" scripts/build_llama_tool.sh llama-server llama-bench)
server=$(echo "$tools" | sed -n 1p)
bench=$(echo "$tools" | sed -n 2p)
exec "$python" -m tools.bench load --peer-binary "$server" --llama-bench "$bench" --out .bench "$@"
