#!/bin/sh
# Makes the virtual environment of an image: what pyproject.toml requires, in the versions of constraints.txt, with the
# given wheel of llama-cpp-python, and nothing that a serving worker never opens. The worker itself is installed after it.
#
# Usage: image_libraries.sh FOLDER WHEEL [EXTRAS]
# EXTRAS: of pyproject.toml, with commas between them, such as kv-events,otel.
# Runs while an image is built, in the folder with pyproject.toml. Needs /tools/bin/python with pip, and strip.
set -eu

[ $# -eq 2 ] || [ $# -eq 3 ] || { echo "usage: image_libraries.sh FOLDER WHEEL [EXTRAS]" >&2; exit 2; }
folder=$1
wheel=$2
extras=${3:-}
tools=/tools/bin/python

# The environment has no pip of its own: the tools' one installs into it from outside.
python3 -m venv --without-pip "$folder"
"$tools" - "$extras" <<'PYTHON' >/tmp/requirements.txt
import sys
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], sep="\n")
for extra in filter(None, sys.argv[1].split(",")):
    print(*project["optional-dependencies"][extra.strip()], sep="\n")
PYTHON
"$tools" -m pip --python "$folder/bin/python" install --no-cache-dir --disable-pip-version-check --quiet \
    --constraint constraints.txt --requirement /tmp/requirements.txt "$wheel"
# Required by others and never called, 35 MB together: Litestar's made-up examples of an API, and the hub's own transfer
# protocol, where the worker downloads over HTTP itself.
"$tools" -m pip --python "$folder/bin/python" uninstall --quiet --yes faker hf-xet

cd "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

# ── llama.cpp ─────────────────────────────────────────────────────────────────────────────────────
# For compilers and for tools that are not here; a second copy of each library where the build was not portable.
rm -rf include lib bin llama_cpp/include llama_cpp/lib/cmake llama_cpp/lib/pkgconfig llama_cpp/lib/libllama-common*
# Of Cannon Lake hardly a processor was sold; it takes Skylake's, too.
rm -f llama_cpp/lib/libggml-cpu-cannonlake.so
# A wheel has no links: libx.so and libx.so.0 are copies of libx.so.0.1, and both would be loaded, each with its own state.
for copy in llama_cpp/lib/*.so llama_cpp/lib/*.so.*; do
    for original in "${copy%%.so*}".so.*.*.*; do
        if [ "$copy" != "$original" ] && cmp -s "$copy" "$original"; then
            ln -sf "$(basename "$original")" "$copy"
        fi
    done
done

# ── the others ────────────────────────────────────────────────────────────────────────────────────
# Commands of the libraries: nobody calls them here.
find "$folder/bin" -type f -delete
find . -type d -name tests -prune -exec rm -rf {} +
find . -name '*.pyi' -delete
find . -name '*.a' -delete
# They compile extensions of numpy's kind, and try its vector instructions.
rm -rf numpy/distutils numpy/f2py numpy/_core/_simd.*
# The hub's command line, and its service of computing elsewhere.
rm -rf huggingface_hub/cli huggingface_hub/inference
# Colours for languages that nobody prints here.
find pygments/lexers -name '*.py' ! -name '__init__.py' ! -name '_mapping.py' ! -name 'python.py' ! -name 'special.py' -delete
# What is never imported, or only by commands that people wait for anyway, need not lie there compiled as well.
# Some of it only an extra brings.
for package in charset_normalizer filelock fsspec httpcore httpx huggingface_hub litestar/testing markdown_it numpy/ma \
    numpy/polynomial polyfactory pygments requests tqdm urllib3; do
    [ ! -d "$package" ] || find "$package" -name __pycache__ -prune -exec rm -rf {} +
done
# Not numpy: its libraries were patched after they were linked, and strip breaks such ones.
find . -name '*.so*' -type f ! -path './numpy*' -exec strip --strip-unneeded {} +
