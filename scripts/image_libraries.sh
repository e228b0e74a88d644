#!/bin/sh
# Makes the virtual environment of an image. It has the packages that pyproject.toml requires, in the versions of
# constraints.txt, and the given wheel of llama-cpp-python. Files that a serving worker never opens are removed. The worker
# itself is installed later.
#
# Usage: image_libraries.sh FOLDER WHEEL [EXTRAS]
# EXTRAS are those of pyproject.toml, separated by commas, such as kv-events,otel.
# Runs while an image is built, in the folder with pyproject.toml. Needs /tools/bin/python with pip, and strip.
set -eu

[ $# -eq 2 ] || [ $# -eq 3 ] || { echo "usage: image_libraries.sh FOLDER WHEEL [EXTRAS]" >&2; exit 2; }
folder=$1
wheel=$2
extras=${3:-}
tools=/tools/bin/python

# The environment has no pip. The pip of the tools installs into it from outside.
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
# Other packages require these two, but nothing calls them; together they have 35 MB. faker makes up examples for Litestar's
# API documents, and hf-xet is the hub's own transfer protocol; the worker downloads over HTTP itself.
"$tools" -m pip --python "$folder/bin/python" uninstall --quiet --yes faker hf-xet

cd "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

# ── llama.cpp ─────────────────────────────────────────────────────────────────────────────────────
# These are for compilers and for tools that the image does not have. In a build that is not portable they include a second
# copy of each library.
rm -rf include lib bin llama_cpp/include llama_cpp/lib/cmake llama_cpp/lib/pkgconfig llama_cpp/lib/libllama-common*
# Hardly any Cannon Lake processors were sold, and they can use Skylake's module.
rm -f llama_cpp/lib/libggml-cpu-cannonlake.so
# A wheel has no links, so libx.so and libx.so.0 are copies of libx.so.0.1. Both would be loaded, each with its own state.
for copy in llama_cpp/lib/*.so llama_cpp/lib/*.so.*; do
    for original in "${copy%%.so*}".so.*.*.*; do
        if [ "$copy" != "$original" ] && cmp -s "$copy" "$original"; then
            ln -sf "$(basename "$original")" "$copy"
        fi
    done
done

# ── the others ────────────────────────────────────────────────────────────────────────────────────
# The libraries' own commands are not called in the image.
find "$folder/bin" -type f -delete
find . -type d -name tests -prune -exec rm -rf {} +
find . -name '*.pyi' -delete
find . -name '*.a' -delete
# These compile extensions for numpy, and test its vector instructions.
rm -rf numpy/distutils numpy/f2py numpy/_core/_simd.*
# The hub's command line, and its client for remote inference.
rm -rf huggingface_hub/cli huggingface_hub/inference
# Colours for languages that the worker never prints.
find pygments/lexers -name '*.py' ! -name '__init__.py' ! -name '_mapping.py' ! -name 'python.py' ! -name 'special.py' -delete
# These packages are never imported, or only by commands that take long anyway, so they need no bytecode. Some of them come
# only with an extra.
for package in charset_normalizer filelock fsspec h11 httpcore httpcore2 httpx huggingface_hub litestar/channels \
    litestar/contrib litestar/repository litestar/security litestar/testing markdown_it numpy/ma numpy/polynomial \
    numpy/testing packaging polyfactory pygments requests tqdm urllib3; do
    [ ! -d "$package" ] || find "$package" -name __pycache__ -prune -exec rm -rf {} +
done
# Licences beside libraries are texts. numpy is left out: its libraries were patched after they were linked, and strip
# breaks such libraries.
find . -name '*.so*' ! -name '*.LICENSE' -type f ! -path './numpy*' -exec strip --strip-unneeded {} +
