"""Lines as the library writes them (its own wording, from its sources for backends that are not in this build)."""

import pytest

from worker.llama.library import LIBRARY_DIR, LogLine, Watch
from worker.models.plan.buffers import Buffer


def watched(*texts: str, level: str = "info") -> Watch:
    watch = Watch()
    for text in texts:
        watch.take(LogLine(level, text))  # type: ignore[arg-type]  # a parameter of the test
    return watch


@pytest.mark.parametrize(
    ("text", "buffer"),
    [
        ("load_tensors:   CPU_Mapped model buffer size =    92.10 MiB", Buffer("CPU_Mapped", "model", 96573850)),
        ("llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB", Buffer("CUDA0", "KV", 2**30)),
        ("llama_context:  CUDA_Host  output buffer size =     1.50 MiB", Buffer("CUDA_Host", "output", 1572864)),
        ("sched_reserve:       MTL0 compute buffer size =     0.25 MiB", Buffer("MTL0", "compute", 2**18)),
        ("llama_memory_recurrent:    Vulkan0 RS buffer size =     1.00 MiB", Buffer("Vulkan0", "RS", 2**20)),
        ("~llama_context:   CPU compute buffer size is  14.0117 MiB, matches expectation of  14.0117 MiB", None),
    ],
)
def test_a_buffer_line_is_measured_but_for_the_one_at_the_end_of_a_context(text: str, buffer: Buffer | None) -> None:
    assert watched(text).sizes.buffers == ((buffer,) if buffer else ())


def test_a_device_has_its_own_buffers_and_no_others() -> None:
    names = ("CUDA1", "CUDA1_Split", "CUDA10", "CUDA_Host", "CPU")
    sizes = watched(*(f"load_tensors: {name} model buffer size = 1.00 MiB" for name in names)).sizes
    assert sizes.on_device("CUDA1") == 2 * 2**20
    assert sizes.total_bytes == 5 * 2**20
    assert (sizes + sizes).of_kind("model") == 10 * 2**20
    assert sizes.of_kind("model", ["CUDA1", "CUDA10"]) == 3 * 2**20
    assert sizes.of_kind("KV", ["CUDA1"]) == sizes.of_kind("model", []) == 0


def test_offloaded_layers_are_counted() -> None:
    watch = watched("load_tensors: offloaded 12/33 layers to GPU")
    assert (watch.n_offloaded, watch.n_layers) == (12, 33)


@pytest.mark.parametrize(
    "text",
    [
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 123456",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 123456",
    ],
)
def test_a_failed_allocation_says_its_size(text: str) -> None:
    watch = watched(text, level="error")
    assert watch.needed_bytes == 123456
    assert watch.last_error == text


def test_flash_attention_that_is_left_out_is_noticed() -> None:
    for said, is_without in (
        ("resolve_fused_ops: Flash Attention not supported, set to disabled", True),
        ("llama_init_from_model: flash_attn is not compatible with Grok - forcing off", True),
        ("resolve_fused_ops: Flash Attention enabled", False),
    ):
        assert watched(said, level="warning").is_without_flash == is_without


def test_the_library_has_these_words_for_it() -> None:
    """No model here leaves it out on a CPU, so the words are looked for where they lie."""
    words = b"".join(path.read_bytes() for path in LIBRARY_DIR.glob("libllama.*"))
    known = (b"%s: %s not supported, set to disabled", b"Flash Attention", b"flash_attn is not compatible with")
    assert [word for word in known if word not in words] == []
