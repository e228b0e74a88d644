"""A model in several files has one model info when all parts are there; else one line names the part that is wrong."""

import os
from pathlib import Path

import pytest

from tests.gguf_files import GgufFile, TensorRow, Typed, Value, tiny_split
from worker.errors import BadModelFile
from worker.models.facts.info import read_info


def refusal(path: Path) -> str:
    """The line a bad file is refused with, less the path it begins with."""
    with pytest.raises(BadModelFile) as caught:
        read_info(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_split_model_is_one_card(tmp_path: Path) -> None:
    paths = tiny_split(tmp_path)
    info = read_info(paths[0])
    assert info.part_paths == tuple(paths)
    assert info.file_bytes == sum(path.stat().st_size for path in paths)
    assert [tensor.name for tensor in info.tensors][1:] == ["blk.1.attn_norm.weight", "blk.2.attn_norm.weight"]


def test_the_least_alignment_of_all_parts_is_the_model_s(tmp_path: Path) -> None:
    paths = tiny_split(tmp_path)
    assert read_info(paths[0]).alignment == 32
    split: dict[str, Value] = {"split.no": Typed("u16", 1), "split.count": Typed("u16", 3), "general.alignment": 8}
    GgufFile(split, [TensorRow("blk.1.attn_norm.weight", (32,), 32 * 4)], alignment=8).write(paths[1])
    assert read_info(paths[0]).alignment == 8


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = tiny_split(tmp_path)
    paths[1].unlink()
    assert refusal(paths[0]) == "part 1 of 3; tiny-00002-of-00003.gguf is missing from the same folder"


def test_a_later_part_says_which_to_name(tmp_path: Path) -> None:
    assert refusal(tiny_split(tmp_path)[2]) == "part 3 of 3: name the first one, tiny-00001-of-00003.gguf"


def test_a_renamed_part_says_how_it_must_be_named(tmp_path: Path) -> None:
    renamed = tiny_split(tmp_path)[0].rename(tmp_path / "model.gguf")
    assert refusal(renamed) == "part 1 of 3, so its name must end in -00001-of-00003.gguf"


@pytest.mark.parametrize("cut", [0, 10, 60, -1])
def test_a_part_cut_short_is_refused_by_its_own_name(tmp_path: Path, cut: int) -> None:
    paths = tiny_split(tmp_path)
    os.truncate(paths[1], cut if cut >= 0 else paths[1].stat().st_size + cut)
    with pytest.raises(BadModelFile, match=r"^\S+/tiny-00002-of-00003\.gguf: "):
        read_info(paths[0])


def test_parts_in_each_other_s_place_are_refused(tmp_path: Path) -> None:
    _, second, third = tiny_split(tmp_path)
    second.write_bytes(third.read_bytes())
    with pytest.raises(BadModelFile, match=r"tiny-00002-of-00003\.gguf: metadata key 'split\.no' is 2, must be 1"):
        read_info(tmp_path / "tiny-00001-of-00003.gguf")


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first, second, _ = tiny_split(tmp_path)
    GgufFile({"split.no": Typed("u16", 1)}, [TensorRow("blk.2.attn_norm.weight", (32,), 128)]).write(second)
    assert refusal(first) == "tensor 'blk.2.attn_norm.weight' appears in 2 of its parts"
