"""A program: what the library says of a tiny model of each architecture that is named, a line of JSON for each.

    python -m tests.models.upstream.architecture_words memory|dense|experts llama mamba …

A model is made from keys alone: the library asks for whatever tensors the architecture has, and their data is left as
it comes. Some architectures end the process for want of a key; the caller begins again with the next one.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from llama_cpp import llama_cpp as capi

from tests.gguf_files import GgufFile
from tools.made_architectures import Keys, keys_of, model_of_keys, small_vocabulary
from worker.llama.library import open_library


def main() -> None:
    asked, *names = sys.argv[1:]
    library = open_library()
    with TemporaryDirectory() as folder:
        for name in names:
            metadata = {**keys_of(name, has_experts=asked == "experts"), **small_vocabulary()}
            path = Path(folder) / "made.gguf"
            path.write_bytes(GgufFile(metadata).header())
            with library.watch() as watch:
                reported = memory_of(path) if asked == "memory" else window_of(metadata)
            sys.stdout.write(json.dumps({"name": name, "reported": reported, "error": watch.last_error}) + "\n")
            sys.stdout.flush()


def memory_of(path: Path) -> list[bool] | None:
    """Return whether the library calls the architecture recurrent, and hybrid; None if it does not know it."""
    params = capi.llama_model_default_params()
    params.vocab_only = True
    model = capi.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return None
    found = [bool(capi.llama_model_is_recurrent(model)), bool(capi.llama_model_is_hybrid(model))]
    capi.llama_model_free(model)
    return found


def window_of(metadata: Keys) -> int | None:
    """Return how far layers with a sliding window look back, 0 if there are none; None if no model can be made."""
    with model_of_keys(metadata, lambda _tensor, _: None) as model:
        return int(capi.llama_model_n_swa(model)) if model else None


if __name__ == "__main__":
    main()
