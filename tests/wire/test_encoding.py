"""Values as bytes: what msgspec makes of them, and an error instead of a crash if memory is short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.shim import Switch, built
from tests.imports import sources
from worker.wire.encoding import encode_json, encode_messagepack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_the_bytes_are_msgspecs(value: object) -> None:
    assert encode_json(value) == msgspec.json.encode(value)
    assert encode_messagepack(value) == msgspec.msgpack.encode(value)


SHORT_OF_MEMORY = """
import os, sys
from worker.wire import encoding
value = ["x" * 1000] * 1000
open(os.environ["FAULTS_WHILE"], "w").close()
try:
    getattr(encoding, sys.argv[1])(value)
except MemoryError:
    print("MemoryError")
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["encode_json", "encode_messagepack"])
def test_a_buffer_that_cannot_grow_is_an_error_and_ends_no_process(name: str, tmp_path: Path) -> None:
    """One allocation fails, of at least 64 KiB."""
    switch = Switch(built(tmp_path), tmp_path / "on", "alloc=65536")
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, name],
        env={**os.environ, **switch.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "MemoryError\n"), done.stderr


def test_no_part_of_the_worker_encodes_otherwise() -> None:
    """Commands that print may: they serve nobody."""
    own = {"worker.wire.encoding", "worker.commands.tables"}
    others = re.compile(r"msgspec\.(json|msgpack)\.(encode|Encoder)\(")
    names = [module.name for module in sources() if module.name.startswith("worker.") and others.search(module.text)]
    assert set(names) == own
