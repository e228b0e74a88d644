#!/bin/sh
# Measures this worker next to llama-server and llama-bench of the same llama.cpp, and writes the report to .bench/.
# Usage: bench_peers.sh load|kernels [options of `python -m tools.bench load|kernels`]
# The peers are built first, once, in the user's cache. They have llama.cpp's own flags, and the bounds are relative to them.
# For `kernels` it builds the worker's llama.cpp with llama-bench, too. CC and CXX choose the compiler of both.
# For `load` it also builds llama-server with the worker's flags, which is another column of the report.
# Run it on an idle machine; either takes an hour or more.
set -eu

[ $# -gt 0 ] || { echo "bench_peers: say what to measure: bench_peers.sh load|kernels" >&2; exit 2; }

cd "$(dirname "$0")/.."
export PYTHON="${PYTHON:-.venv/bin/python}"
command=$1
shift
if [ "$command" = kernels ]; then
    stock=$(scripts/build_llama_tool.sh --stock llama-bench)
    ours=$(scripts/build_llama.sh cpu --tools | sed -n 2p)/llama-bench
    compiler=$(scripts/build_llama.sh --compiler)
    compiler=$("${compiler#* }" --version | sed -n 1p)
    exec "$PYTHON" -m tools.bench kernels --ours "$ours" --stock "$stock" --compiler "$compiler" --out .bench "$@"
fi
tools=$(scripts/build_llama_tool.sh --stock llama-server llama-bench)
server=$(echo "$tools" | sed -n 1p)
bench=$(echo "$tools" | sed -n 2p)
ours=$(scripts/build_llama_tool.sh llama-server)
exec "$PYTHON" -m tools.bench "$command" --our-flags-binary "$ours" --peer-binary "$server" --llama-bench "$bench" --out .bench "$@"
