#!/bin/sh
# Checks a machine with an NVIDIA GPU in one command, and writes .cuda_check/report.json. docs/performance.md explains it.
# It builds llama.cpp once for that GPU, for the worker and for llama-server and llama.cpp's benchmarks. It installs the
# worker in its own environment, runs the GPU tests, measures the worker beside these peers and without them, compares the
# GPU's numbers with the CPU's, and makes a parity certificate.
#
# Usage: cuda_check.sh [--device DEVICE] [--wheel FILE | --python FILE] [--tools FOLDER] [--build-only] [OPTIONS] [STEP…]
#            --device DEVICE  the default is cuda; another device tries the steps on a machine without an NVIDIA GPU
#            --wheel FILE     use a llama-cpp-python that was built elsewhere (scripts/build_llama.sh cuda --tools)
#            --python FILE    use an interpreter in which everything is installed: build and install nothing
#            --tools FOLDER   the peers of that build, for the steps `served` and `served-small`
#            --build-only     build and install, check nothing
#            OPTIONS, STEP    see `python -m tools.cuda_check run --help`; without STEP, those that have passed are left out
# Needs Python 3.11 with venv (PYTHON names another), a C++ compiler, nvcc and cuBLAS. Fetches the default model. Without a
# network, give pip a folder of packages: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER.
#
# A round without STEP is to take 20 minutes on a machine with 16 cores and a GPU of 80 GB. These are the times expected of
# its parts. That of `build` is 334 s of an H100's machine without the peers, and a guess for these and the installation.
# Those of `served`, `served-small` and `probe` are from 250 s for all of them on an H200. The others are guesses.
#     build          450 s   the peers are compiled beside the GPU's kernels, which take the longest
#     device           5 s
#     tests           60 s
#     make            45 s   3.8 GB are written
#     served         150 s   two rounds of seven scenarios on four servers and two benchmarks
#     probe           90 s
#     parity          40 s
#     control         45 s
#     certificate    100 s
#     served-small    70 s   one round
# A round that was broken off goes on where it was.
set -eu

fail() {
    echo "cuda_check: $1" >&2
    exit 1
}

device=cuda
wheel=
python=
tools=
build_only=
left=$#
while [ "$left" -gt 0 ]; do
    left=$((left - 1))
    case $1 in
        --device | --wheel | --python | --tools)
            [ "$left" -gt 0 ] || { echo "cuda_check: $1 needs a value" >&2; exit 2; }
            left=$((left - 1))
            case $1 in
                --device) device=$2 ;;
                --wheel) wheel=$2 ;;
                --python) python=$2 ;;
                --tools) tools=$2 ;;
            esac
            shift 2
            ;;
        --build-only) build_only=1; shift ;;
        # Options of tools.cuda_check move to the end of the line and keep their order.
        *) set -- "$@" "$1"; shift ;;
    esac
done
[ -z "$wheel" ] || [ -f "$wheel" ] || fail "$wheel is not a file"
wheel=${wheel:+$(realpath "$wheel")}
[ -z "$tools" ] || [ -d "$tools" ] || fail "$tools is not a folder"
tools=${tools:+$(realpath "$tools")}
# Links are not resolved, because a virtual environment's interpreter is a link.
[ -z "$python" ] || python=$(command -v "$python") || fail "--python names no program"
case $python in '' | /*) ;; *) python=$PWD/$python ;; esac
cd "$(dirname "$0")/.."

backend=${device%%:*}
if [ "$backend" = cuda ]; then
    # 9.0 is 90-real: machine code for this GPU and no other.
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | sed -n 's/^\([0-9]*\)\.\([0-9]\)$/\1\2-real/p') || true
    [ -n "$found" ] || fail "no NVIDIA GPU here: nvidia-smi lists none (--device cpu tries the round without)"
    LLORCH_CUDA_ARCHITECTURES=${LLORCH_CUDA_ARCHITECTURES:-$(echo "$found" | paste -sd ';' -)}
    # The report has nvcc's version; build_llama.sh looks for nvcc in the same folder.
    PATH=$PATH:/usr/local/cuda/bin
    export LLORCH_CUDA_ARCHITECTURES PATH
fi

build_s=0
if [ -z "$python" ]; then
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/llorch-worker/cuda_check
    python=$cache/venv/bin/python
    [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$cache/venv"
    if [ -z "$wheel" ]; then
        began=$(date +%s)
        built=$(PYTHON=$python scripts/build_llama.sh "$backend" --tools)
        wheel=$(echo "$built" | sed -n 1p)
        tools=${tools:-$(echo "$built" | sed -n 2p)}
        build_s=$(($(date +%s) - began))
    fi
    # Install once for each build and each list of packages, not at every step.
    wanted=$(cat pyproject.toml constraints.txt "$wheel" | cksum)
    if [ "$wanted" != "$(cat "$cache/installed" 2>/dev/null)" ]; then
        echo "==> installing into $cache/venv" >&2
        "$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
        "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
        echo "$wanted" >"$cache/installed"
    fi
fi
[ -z "$build_only" ] || exit 0
# The tests use this model, and so do the steps unless --model names another.
"$python" -m worker models pull smollm2-135m-instruct >/dev/null
exec "$python" -m tools.cuda_check run --device "$device" ${wheel:+--wheel "$wheel" --build-s "$build_s"} \
    ${tools:+--tools "$tools"} "$@"
