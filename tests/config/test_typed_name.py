"""The default served name: the file name of a path, and any other reference as it was typed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.config.settings import typed_name

_WORDS = st.text("abcXYZ019_", min_size=1)


@pytest.mark.parametrize("before", ["", "./", "/", "../", "~/", "a/", "/srv/models/", "a/b/", "file:/x/", "file:"])
@pytest.mark.parametrize("file", ["m.gguf", "M.GGUF", "m-00001-of-00002.gguf", "日本語 x.gguf"])
def test_of_a_path_to_a_gguf_it_is_the_file_s_name(before: str, file: str) -> None:
    assert typed_name(before + file) == file


@pytest.mark.parametrize("before", ["./", "/", "../", "~/", "/srv/models/", "a/b/", "file:/x/", "file:"])
def test_of_a_path_of_another_form_too(before: str) -> None:
    assert typed_name(f"{before}weights") == "weights"


@given(_WORDS, _WORDS, st.sampled_from(["", ":Q4_K_M", "@v1", "::file=x.gguf", "@v1:q8_0"]))
def test_of_a_repository_it_is_what_was_typed_without_its_prefix(org: str, repo: str, more: str) -> None:
    assert typed_name(f"hf:{org}/{repo}{more}") == f"{org}/{repo}{more}"


@pytest.mark.parametrize("typed", ["smollm2-135m-instruct", "org/repo:Q4_K_M", "org/repo"])
def test_a_name_stays_as_it_is(typed: str) -> None:
    assert typed_name(typed) == typed


@given(st.text(min_size=1))
def test_it_never_shows_a_directory(typed: str) -> None:
    assert typed_name(f"/secret/{typed}").count("/") == 0
