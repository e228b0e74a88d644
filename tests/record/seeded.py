"""Seeded answers of a real model: the default model's first two layers in F32, on the CPU.

The last bits of a number differ between processors, and which token is drawn does not: numbers are left out.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from parity.llama.quantise import quantise
from tests.default_model import default_file
from tests.record.routes import ask_in_order
from tests.record.rows import Json
from tests.shallow_model import write_shallow
from tests.worker_process import WorkerProcess

FLAGS = ("--port", "0", "--device", "cpu", "--parallel", "2", "--ctx-size", "2048")
_NUMBER = re.compile(r"-?\d+\.\d+(e-?\d+)?")


def answers(asks: Sequence[Json]) -> Iterator[Json]:
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        shallow, model = Path(folder) / "shallow.gguf", Path(folder) / "model.gguf"
        write_shallow(default_file(), shallow)
        quantise(shallow, model, "F32", n_threads=2)
        with WorkerProcess("--model", str(model), *FLAGS) as worker:
            found = ask_in_order(worker.ready(), asks)
    return ({**answer, "body": _NUMBER.sub("#", answer["body"])} for answer in found)
