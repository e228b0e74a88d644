"""A quantisation names one file of a hub repository, in all the spellings that quantisers use."""

import pytest

from worker.errors import ModelNotFound
from worker.models.downloads.catalog import HfReference
from worker.models.downloads.hub import quant_of, the_one_meant

QUANTS = (
    *("Q2_K", "Q3_K_S", "Q4_0", "Q4_0_4_4", "Q4_1", "Q4_K", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"),
    *("IQ1_S", "IQ2_XXS", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "BF16", "F16", "F32", "UD-Q4_K_XL"),
)
FORMS = ("m-{}.gguf", "m.{}.gguf", "Qwen3-0.6B-Instruct-{}.gguf", "m_{}.gguf", "{}.gguf", "{}/m.gguf", "m-{}-imat.gguf")


def meant(quant: str | None, *files: str) -> str:
    return the_one_meant(HfReference("org/repo", "main", quant=quant), files)


@pytest.mark.parametrize("form", FORMS)
def test_every_quantisation_is_found_among_all_others_however_it_is_written(form: str) -> None:
    files = [form.format(quant) for quant in QUANTS]
    for quant, file in zip(QUANTS, files, strict=True):
        assert meant(quant, *files) == meant(quant.lower(), *files) == file
        assert meant(quant, *(one.lower() for one in files)) == file.lower()


@pytest.mark.parametrize("folder", ["", "{}/", "gguf/{}/"])
def test_of_several_parts_the_first_is_meant(folder: str) -> None:
    files = [f"{folder.format(quant)}m-{quant}-0000{part}-of-00003.gguf" for quant in QUANTS for part in (1, 2, 3)]
    for quant in QUANTS:
        assert meant(quant, *files) == f"{folder.format(quant)}m-{quant}-00001-of-00003.gguf"


def test_a_mark_may_be_left_out_where_only_one_file_has_the_quantisation() -> None:
    assert meant("Q4_K_XL", "m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf") == "m-UD-Q4_K_XL.gguf"
    assert meant("Q4_K_XL", "m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf") == "m-Q4_K_XL.gguf"


def test_files_that_are_no_model_are_none() -> None:
    files = ("m-F16.gguf", "mmproj-F16.gguf", "mmproj-m-F16.gguf", "m.imatrix.gguf")
    assert meant("F16", *files) == meant(None, *files) == "m-F16.gguf"
    with pytest.raises(ModelNotFound, match=r"has no \.gguf file at main"):
        meant("F16", "mmproj-F16.gguf")


def test_two_files_of_one_quantisation_are_reported_by_name() -> None:
    with pytest.raises(ModelNotFound, match=r"2 \.gguf files of the quantisation Q8_0: add ::file= and one of a-Q8_0"):
        meant("Q8_0", "a-Q8_0.gguf", "b-Q8_0.gguf")


def test_what_there_is_is_reported_where_the_quantisation_is_unknown() -> None:
    with pytest.raises(ModelNotFound, match=r"no GGUF of the quantisation Q9; it has Q4_0, Q8_0$"):
        meant("Q9", "m-Q8_0.gguf", "m-Q4_0.gguf", "m.gguf")
    with pytest.raises(ModelNotFound, match=r"it has files only: a\.gguf, b\.gguf$"):
        meant("Q9", "b.gguf", "a.gguf")


@pytest.mark.parametrize("file", ["model.gguf", "Qwen3-8B.gguf", "Q/m.gguf", "m-v2.gguf", "m-q.gguf"])
def test_a_name_without_a_quantisation_has_none(file: str) -> None:
    assert quant_of(file) == ""
