#!/bin/sh
# Builds llama.cpp's own tools (llama-perplexity, llama-server, llama-bench) from the source distribution of the installed
# llama-cpp-python, once per version and build flags, in the user's cache, and prints the path of each, one a line.
# Usage: build_llama_tool.sh NAME… Needs cmake and a C++ compiler; some minutes for the first tool.
set -eu

[ $# -gt 0 ] || { echo "build_llama_tool: name a tool, as in: build_llama_tool.sh llama-server llama-bench" >&2; exit 2; }

python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/llorch-worker/llama.cpp-$version
# With the flags and the compiler of the worker's own llama.cpp: equal kernels on both sides, but for what patches add.
flags=$("$(dirname "$0")/build_llama.sh" --flags cpu 2>/dev/null)
compiler=$("$(dirname "$0")/build_llama.sh" --compiler)
build=$cache/build-$(echo "$flags $compiler" | cksum | cut -d ' ' -f 1)

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
    echo "==> building$missing, once" >&2
    echo "$flags" | CC=${compiler% *} CXX=${compiler#* } xargs cmake -S "$cache/source" -B "$build" \
        -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON \
        -DLLAMA_BUILD_UI=OFF >&2
    # With a number: without one make would start all compilers at once.
    # shellcheck disable=SC2086 # names of tools, split at spaces
    cmake --build "$build" --target $missing --parallel "$(getconf _NPROCESSORS_ONLN)" >&2
fi
for tool; do
    echo "$build/bin/$tool"
done
