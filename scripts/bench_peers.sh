#!/bin/sh
# Measures this worker beside llama-server and llama-bench of the same llama.cpp, which are built first, once, in the
# user's cache; writes the report to .bench/. Usage: bench_peers.sh load|sizes [options of `python -m tools.bench load|sizes`]
# On two idle processors; each takes an hour or more.
set -eu

[ $# -gt 0 ] || { echo "bench_peers: say what to measure: bench_peers.sh load|sizes" >&2; exit 2; }

cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
tools=$(PYTHON="$python" scripts/build_llama_tool.sh llama-server llama-bench)
server=$(echo "$tools" | sed -n 1p)
bench=$(echo "$tools" | sed -n 2p)
command=$1
shift
exec "$python" -m tools.bench "$command" --peer-binary "$server" --llama-bench "$bench" --out .bench "$@"
