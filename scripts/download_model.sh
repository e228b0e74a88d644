#!/bin/sh
# Downloads one model, checks it, and prints its path. It runs `llorch-worker models pull`.
set -eu

usage() {
    cat <<'TEXT'
usage: scripts/download_model.sh NAME [DIR]

  NAME  a name of models.toml, org/repo:QUANT, or hf:org/repo[@revision][:QUANT or ::file=name.gguf]
  DIR   where to store it; the default is LLORCH_MODELS_DIR, else the user's cache directory

An interrupted download from the hub or a URL goes on where it stopped. The path is printed on stdout, progress on stderr.
HF_ENDPOINT, HF_HOME, HF_TOKEN and pip's own settings are honoured.
TEXT
}

case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    '' | -*) usage >&2; exit 2 ;;
esac
if [ "$#" -gt 2 ]; then
    usage >&2
    exit 2
fi

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
worker=$root/.venv/bin/llorch-worker
if [ ! -x "$worker" ]; then
    worker=llorch-worker
    if ! command -v "$worker" >/dev/null 2>&1; then
        echo "download_model.sh: no llorch-worker in $root/.venv or on PATH: run 'make run' once, or install it" >&2
        exit 1
    fi
fi

if [ "$#" -eq 2 ]; then
    exec "$worker" models pull --models-dir "$2" -- "$1"
fi
exec "$worker" models pull -- "$1"
