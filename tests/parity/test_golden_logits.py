"""`parity reference` makes the committed logits again, from the model as it is."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from parity.logits_file import LogitsFile
from tests.parity.golden_logits import GOLDEN, without_torch
from worker.cli import run


@pytest.mark.model
@pytest.mark.parity
def test_the_committed_logits_are_what_the_command_makes_and_then_finds(
    default_model: Path, checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is there already; parity/test_references.py has commands that make one."""
    shutil.copytree(checkpoint, tmp_path / "checkpoint", copy_function=os.link)
    where = ("--model", str(default_model), "--output", str(tmp_path))
    arguments = ("reference", *where, "--tokens", "512", "--threads", "1")
    assert run(["parity", *arguments]) == 0
    said = capfd.readouterr()
    made = said.out.split()
    assert "de-quantising" not in said.err
    assert made == [str(tmp_path / "checkpoint"), str(tmp_path / "logits.safetensors")]
    new, golden = LogitsFile.open(Path(made[1])), LogitsFile.open(GOLDEN)
    assert (new.windows, new.hard_ids) == (golden.windows, golden.hard_ids)
    for one, other in zip(new.full_rows(), golden.full_rows(), strict=True):
        np.testing.assert_allclose(one[2], other[2], rtol=0, atol=1e-5)
    found = without_torch(*arguments)
    assert (found.returncode, found.stdout.split(), found.stderr) == (0, made, "")
