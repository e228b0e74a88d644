#!/bin/sh
# Builds llama.cpp's own tools (llama-perplexity, llama-server, llama-bench) and prints the path of each, one per line.
# The source is that of the installed llama-cpp-python. Each version, set of build flags, compiler and processor is built
# once, in the user's cache.
# Usage: build_llama_tool.sh [--stock] NAME…
#            without --stock: the flags of the worker's llama.cpp, so that both have the same kernels, except for the patches
#            --stock: llama.cpp's own default flags, as in any build for this machine
# Both use the compiler that build_llama.sh chooses. If no compiler compiles AMX soundly, a stock build has no AMX either,
# because it would crash. CMAKE_ARGS of the environment come last. Needs cmake and a C++ compiler, and some minutes for the
# first tool.
set -eu

stock=
if [ "${1:-}" = --stock ]; then
    stock=1
    shift
fi
[ $# -gt 0 ] || { echo "build_llama_tool: name a tool, as in: build_llama_tool.sh llama-server llama-bench" >&2; exit 2; }

build_llama=$(dirname "$0")/build_llama.sh
python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/llorch-worker/llama.cpp-$version
compiler=$("$build_llama" --compiler)
flags=$("$build_llama" --flags cpu 2>/dev/null)
if [ -n "$stock" ]; then
    without_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    case $flags in
        *"$without_amx"*) flags="-DCMAKE_C_FLAGS='$without_amx' -DCMAKE_CXX_FLAGS='$without_amx' ${CMAKE_ARGS:-}" ;;
        *) flags=${CMAKE_ARGS:-} ;;
    esac
fi
processor=$(grep -m 1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null || true)
build=$cache/build${stock:+-stock}-$(echo "$flags $compiler $processor" | cksum | cut -d ' ' -f 1)

missing=
for tool; do
    [ -x "$build/bin/$tool" ] || missing="$missing $tool"
done

if [ -n "$missing" ]; then
    command -v cmake >/dev/null || { echo "build_llama_tool: cmake is missing: install it" >&2; exit 1; }
    mkdir -p "$cache"
    if [ ! -d "$cache/source" ]; then
        echo "==> fetching llama.cpp's source (77 MB)" >&2
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
            --dest "$cache" "llama-cpp-python==$version" >&2
        rm -rf "$cache/unpacked"
        mkdir "$cache/unpacked"
        tar -xzf "$cache"/llama_cpp_python-*.tar.gz -C "$cache/unpacked" --strip-components 3 --wildcards '*/vendor/llama.cpp/*'
        rm "$cache"/llama_cpp_python-*.tar.gz
        mv "$cache/unpacked" "$cache/source"
    fi
    echo "==> building$missing${stock:+ (stock)} with ${compiler#* }, once" >&2
    # The text is never empty: with empty input some versions of xargs run nothing.
    echo "-DCMAKE_BUILD_TYPE=Release $flags" | CC=${compiler% *} CXX=${compiler#* } xargs cmake -S "$cache/source" -B "$build" \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON \
        -DLLAMA_BUILD_UI=OFF >&2
    # --parallel needs the number: without one make would start all compilers at once.
    # shellcheck disable=SC2086 # names of tools, split at spaces
    cmake --build "$build" --target $missing --parallel "$(getconf _NPROCESSORS_ONLN)" >&2
fi
for tool; do
    echo "$build/bin/$tool"
done
