#!/bin/sh
# Measures this worker beside llama-server and llama-bench of the same llama.cpp, which are built first, once, in the
# user's cache: with llama.cpp's own flags, as the peer to keep up with, and llama-server with ours, too, as a column of
# `load`. Writes the report to .bench/. Usage: bench_peers.sh load|sizes [options of `python -m tools.bench load|sizes`]
# On idle processors; each takes an hour or more.
set -eu

[ $# -gt 0 ] || { echo "bench_peers: say what to measure: bench_peers.sh load|sizes" >&2; exit 2; }

cd "$(dirname "$0")/.."
export PYTHON="${PYTHON:-.venv/bin/python}"
command=$1
shift
tools=$(scripts/build_llama_tool.sh --stock llama-server llama-bench)
server=$(echo "$tools" | sed -n 1p)
bench=$(echo "$tools" | sed -n 2p)
if [ "$command" = load ]; then
    ours=$(scripts/build_llama_tool.sh llama-server)
    set -- --our-flags-binary "$ours" "$@"
fi
exec "$PYTHON" -m tools.bench "$command" --peer-binary "$server" --llama-bench "$bench" --out .bench "$@"
