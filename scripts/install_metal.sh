#!/bin/sh
# Installs llorch-worker natively on a Mac, with llama.cpp built for Metal, and tries it: the GPU's greedy answer must be
# the CPU's. The installation is that of `make run`, a virtual environment in .venv.
# The script was not run on a Mac yet. The tests run it with stand-ins for Apple's tools.
#
# Usage: install_metal.sh [--cpu-only]
#            --cpu-only: try the CPU alone, with Apple's Accelerate, for example in a virtual machine without a GPU
#                        (llama-cpp-python always compiles Metal in; `--device cpu` does not use it)
# Needs Apple silicon, Xcode's command line tools, and Python 3.11 or newer for arm64 (PYTHON names another).
set -eu

PROMPT="The capital of France is"
N_TOKENS=8

fail() {
    echo "install_metal: $1" >&2
    exit 1
}

# ── the machine and its tools ─────────────────────────────────────────────────────────────────────
check_machine() {
    [ "$(uname -s)" = Darwin ] || fail "this is for macOS; elsewhere: make run BACKEND=cpu, cuda or vulkan"
    [ "$(uname -m)" = arm64 ] && return
    # Under Rosetta, uname reports an Intel processor to Intel programs.
    if [ "$(sysctl -n sysctl.proc_translated 2>/dev/null || true)" = 1 ]; then
        fail "this terminal runs under Rosetta, where all would be built for Intel: start it again with arch -arm64 $0"
    fi
    fail "this Mac has an Intel processor; Metal is for Apple silicon here: make run BACKEND=cpu"
}

check_tools() {
    if ! xcode-select -p >/dev/null 2>&1 || ! command -v c++ >/dev/null; then
        fail "Xcode's command line tools are missing: xcode-select --install"
    fi
}

check_python() {
    command -v "$python" >/dev/null || fail "there is no $python: install Python 3.11 or newer, or name one in PYTHON"
    found=$("$python" -c 'import platform, sys; print(platform.machine(), int(sys.version_info >= (3, 11)))')
    case $found in
        "arm64 1") ;;
        *" 0") fail "$python is older than Python 3.11: name a newer one in PYTHON" ;;
        *) fail "$python is for ${found% *}, and what it builds would be ten times slower: name one for arm64 in PYTHON" ;;
    esac
}

# ── the test of the installation ──────────────────────────────────────────────────────────────────
answer() { .venv/bin/llorch-worker generate "$PROMPT" --max-tokens "$N_TOKENS" --temperature 0 --device "$1" 2>/dev/null; }

try_metal() {
    .venv/bin/llorch-worker devices --json | grep -q '"flag": *"metal"' ||
        fail "llama.cpp sees no Metal device; .venv/bin/llorch-worker devices says why"
    on_cpu=$(answer cpu) || fail "the CPU gives no answer: .venv/bin/llorch-worker generate '$PROMPT' --device cpu"
    on_metal=$(answer metal) || fail "Metal gives no answer: .venv/bin/llorch-worker generate '$PROMPT' --device metal"
    [ "$on_metal" = "$on_cpu" ] ||
        fail "Metal answers '$on_metal' where the CPU answers '$on_cpu': it is installed, but use --device cpu"
    echo "==> Metal answers as the CPU does:$on_metal"
}

try_cpu() {
    on_cpu=$(answer cpu) || fail "the CPU gives no answer: .venv/bin/llorch-worker generate '$PROMPT' --device cpu"
    echo "==> the CPU answers:$on_cpu"
}

backend=metal
case "$#:${1:-}" in
    0:) ;;
    1:--cpu-only) backend=cpu ;;
    *)
        echo "usage: install_metal.sh [--cpu-only]" >&2
        exit 2
        ;;
esac
python=${PYTHON:-python3}

check_machine
check_tools
check_python
cd "$(dirname "$0")/.."
make PYTHON="$python" BACKEND="$backend" .venv/installed
"try_$backend"
echo "==> serve it with: .venv/bin/llorch-worker --model smollm2-135m-instruct --device $backend"
