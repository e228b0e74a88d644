#!/bin/sh
# Builds llama.cpp's own llama-perplexity from the source distribution of the installed llama-cpp-python, once per
# version, in the user's cache, and prints its path. For `make parity-peer`. Needs cmake and a C++ compiler; some minutes.
set -eu

python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/llorch-worker/llama.cpp-$version
tool=$cache/build/bin/llama-perplexity

if [ ! -x "$tool" ]; then
    command -v cmake >/dev/null || { echo "build_llama_perplexity: cmake is missing: install it" >&2; exit 1; }
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
    echo "==> building llama-perplexity, once" >&2
    cmake -S "$cache/source" -B "$cache/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF >&2
    cmake --build "$cache/build" --target llama-perplexity --parallel >&2
fi
echo "$tool"
