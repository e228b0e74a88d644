"""A type of matrix has kernels that are chosen for a reason, and a later start chooses alike.

Where there are none of ours, as on processors without AVX-512 VNNI, `make emulated-test` tries the rest.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.llama.random_models import write_random
from tests.models.loading.test_load import configuration
from worker.config.engine_settings import Configure
from worker.errors import ModelLoadFailed
from worker.llama.invariance import PRODUCT_TYPES, has_own_products, own_types
from worker.llama.kernels import choose_kernels, fixed
from worker.llama.library import open_library
from worker.llama.repack import layout_of
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo, read_info
from worker.wire.load import KernelsChosen, Speeds

pytestmark = pytest.mark.model

UNTIMED: Speeds = (("Q8_0", ()), ("Q4_1", ()))
"""The default model's types, of which only the output matrix is large enough to be timed."""


@pytest.fixture
def info(default_model: Path) -> Iterator[ModelInfo]:
    """Nothing is left to ggml afterwards."""
    open_library()
    found = read_info(default_model)
    yield found
    if has_own_products():
        choose_kernels(
            configuration(default_model),
            found,
            KernelsChosen(ours=tuple((name, ()) for name in PRODUCT_TYPES)),
        )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def config(info: ModelInfo, **changes: object) -> Configure:
    return configuration(info.path, threads=1, **changes)


@pytest.fixture
def _needs_ours(info: ModelInfo) -> None:
    if not has_own_products():
        pytest.skip("this build of llama.cpp, or this processor, has none")


def test_without_ours_all_is_ggmls_and_ours_cannot_be_asked_for(info: ModelInfo) -> None:
    if has_own_products():
        pytest.skip("this build of llama.cpp has them on this processor")
    for kernels in ("auto", "stock"):
        chosen = choose_kernels(config(info, kernels=kernels), info)
        assert (chosen.ours, chosen.stock, own_types()) == ((), (), frozenset())
        assert "only llama.cpp's kernels" in chosen.why
        assert fixed(kernels) == kernels
    with pytest.raises(ModelLoadFailed, match=r"--kernels ours: .* AVX-512 VNNI: use --kernels auto"):
        choose_kernels(config(info, kernels="ours"), info)


@pytest.mark.usefixtures("_needs_ours")
class TestWithOurs:
    def test_what_was_timed_is_remembered(self, info: ModelInfo, cache: Path) -> None:
        remembering = config(info, kernels_dir=str(cache))
        first = choose_kernels(remembering, info)
        assert first.why == "timed at this start"
        assert dict(first.ours + first.stock).keys() == dict(UNTIMED).keys()
        speeds = dict(first.ours + first.stock)["Q8_0"]
        assert len(speeds) == 3
        assert all(speed > 0 for speed in speeds)
        again = choose_kernels(remembering, info)
        assert (again.ours, again.stock) == (first.ours, first.stock)
        assert again.why == "timed at an earlier start"
        assert len(list(cache.rglob("*.json"))) == len(list(cache.rglob("*.*"))) == 1

    @pytest.mark.parametrize("text", ["", "{}", '{"why": "", "ours": [["Q9", []]], "stock": []}'])
    def test_a_file_that_says_something_else_is_written_anew(self, info: ModelInfo, cache: Path, text: str) -> None:
        remembering = config(info, kernels_dir=str(cache))
        choose_kernels(remembering, info)
        (file,) = cache.rglob("*.json")
        file.write_text(text)
        found = [choose_kernels(remembering, info).why for _ in range(2)]
        assert found == ["timed at this start", "timed at an earlier start"]

    def test_where_nothing_can_be_remembered_nothing_is_timed(self, info: ModelInfo, cache: Path) -> None:
        cache.write_text("a file is where the folder would be")
        assert choose_kernels(config(info, kernels_dir=str(cache)), info) == KernelsChosen(
            why="what is timed cannot be remembered here", ours=UNTIMED
        )

    @pytest.mark.parametrize("is_ours", [True, False])
    def test_a_new_engine_goes_on_with_the_choice(self, info: ModelInfo, *, is_ours: bool) -> None:
        choice: Speeds = (("Q4_1", (1.5,)),)
        found = KernelsChosen(why="before", ours=choice if is_ours else (), stock=() if is_ours else choice)
        assert choose_kernels(config(info), info, found) == found
        assert ("Q4_1" in own_types()) == is_ours

    def test_the_flag_decides_and_the_library_lays_out_accordingly(self, info: ModelInfo) -> None:
        matrix = Tensor("blk.0.ffn_up.weight", (576, 1536), "Q4_1", 576 * 1536 // 32 * 20)
        assert choose_kernels(config(info, kernels="stock"), info).stock == UNTIMED
        assert own_types() == PRODUCT_TYPES - dict(UNTIMED).keys()
        assert layout_of(matrix) is None, "ggml has no other order for Q4_1 on x86-64"
        assert choose_kernels(config(info, kernels="ours"), info).ours == UNTIMED
        assert own_types() == PRODUCT_TYPES
        assert layout_of(matrix) is not None

    def test_equal_bits_need_ours_whatever_was_timed(self, info: ModelInfo, cache: Path) -> None:
        timed = choose_kernels(config(info, kernels_dir=str(cache)), info)
        kept = choose_kernels(config(info, kernels_dir=str(cache), batch_invariant="on"), info)
        assert (kept.ours, kept.stock, kept.why) == (timed.ours + timed.stock, (), "--batch-invariant on")
        assert choose_kernels(config(info, deterministic=True), info).why == "--deterministic"
        assert own_types() == PRODUCT_TYPES

    def test_small_matrices_are_not_timed(self, tmp_path: Path, cache: Path) -> None:
        path = write_random(tmp_path / "small.gguf")
        chosen = choose_kernels(configuration(path, kernels_dir=str(cache)), read_info(path))
        assert (chosen.ours, chosen.stock) == ((("Q4_1", ()),), ())
