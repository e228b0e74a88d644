"""Lists of architectures in llama.cpp's source: what memory each has, and which layers have a sliding window."""

from dataclasses import dataclass

ATTENTION_FREE = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
"""Architectures without attention heads: llm_arch_is_recurrent (llama-arch.cpp)."""

HYBRIDS = (
    *("bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2"),
    *("lfm2moe", "minimax-01", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "qwen3next"),
    *("qwen4exp",),
)
"""Architectures with recurrent state beside attention: llm_arch_is_hybrid (llama-arch.cpp)."""

HYBRIDS_OF_SEVERAL_PARTS = ("deepseek4", "glm5-next", "qwen4exp")
"""Hybrids whose memory has a third part: llama_model::create_memory (llama-model.cpp)."""

WITH_SNAPSHOTS = (
    *("bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35"),
    *("qwen35moe", "qwen4exp"),
)
"""Hybrids whose state after each of a sequence's last tokens can be kept, so that these can be taken back:
llm_arch_supports_rs_rollback (llama-arch.cpp)."""

COPYING_EACH_SNAPSHOT = ("qwen35", "qwen35moe")
"""Those of them whose every step copies a part of the state for each snapshot, however few tokens the step has: they
call llm_build_delta_net_base::build_conv_state (models/delta-net-base.cpp)."""

WITH_A_HEAD = ("glm4moe", "hy_v3", "qwen35", "qwen35moe")
"""Architectures whose next-token head the worker drafts with: it is one layer, has cells as other layers have, and
was tried (tests/llama/test_heads.py). A graph for heads have also bailingmoe3, cohere2moe, deepseek2, deepseek32,
deepseek4, glm-dsa, glm5-next, mimo2, nemotron_h_moe, qwen3next and step35: graph_mtp (models/*.cpp)."""

NEEDED_BY_A_HEAD = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight")
"""The tensors without which these end the process."""

ROWS_OF_OUTPUTS_ALONE = ("glm4moe",)
"""Those whose last layer computes only the rows whose logits are asked for, unless all hidden rows are: then it would
compute prompts otherwise than without a head."""

HEADS_OF_PLAIN_POSITIONS = ("glm4moe",)
"""Those whose head ends the process where a position is several numbers, as in models that see."""

OF_SEVERAL_PARTS = ("deepseek32", "dots3note", "glm-dsa", "hy_v4", "minimax-m3")
"""Architectures whose memory has an index beside the cells: llama_model::create_memory (llama-model.cpp)."""

EMBEDDERS = (
    *("bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert"),
    *("nomic-bert", "nomic-bert-moe"),
)
"""llama_model::create_memory (llama-model.cpp) gives most of these no memory."""
DIFFUSERS = ("dream", "llada", "llada-moe", "rnd1")
"""llm_arch_is_diffusion (llama-arch.cpp)."""
ENCODERS = ("t5", "t5encoder")
"""llama_model_has_encoder (llama-model.cpp)."""

OTHER_SHAPES = {
    **dict.fromkeys(EMBEDDERS, "it makes vectors of texts"),
    **dict.fromkeys(DIFFUSERS, "it fills in all tokens of an answer at once, by diffusion"),
    **dict.fromkeys(ENCODERS, "its texts go through an encoder"),
    **dict.fromkeys(
        ("dflash", "eagle3", "gemma4-assistant"), "it drafts tokens for another model, whose layers it reads"
    ),
    **dict.fromkeys(("pockettts", "qwen3tts", "wavtokenizer-dec"), "its output is sound"),
    "clip": "it is the part of a model that reads pictures or sounds",
    "gptj": "llama.cpp does not compute it",
}
"""Architectures that do not generate text token by token, and why."""


@dataclass(frozen=True, slots=True)
class WindowPattern:
    """The layers that have a window if the file does not say: all but one of each `period` layers."""

    period: int
    is_first: bool = False
    """The layer without a window is the first of each period, not the last."""
    length: int = 0
    """The length where the file has none; with 0 there are no windows then."""


WINDOW_PATTERNS = {
    "afmoe": WindowPattern(4),
    "cohere2": WindowPattern(4),
    "cohere2moe": WindowPattern(4, is_first=True),
    "exaone-moe": WindowPattern(4, length=128),
    "exaone4": WindowPattern(4, length=4096),
    "gemma2": WindowPattern(2, length=4096),
    "gemma3": WindowPattern(6),
    "gemma3n": WindowPattern(5),
    "gpt-oss": WindowPattern(2),
    "laguna": WindowPattern(4, is_first=True),
    "llama4": WindowPattern(4, length=8192),
    "mellum": WindowPattern(4),
    "muse-glimmer": WindowPattern(4),
    "olmo2": WindowPattern(4),
    "plamo3": WindowPattern(8),
    "smallthinker": WindowPattern(4, is_first=True),
}
"""Architectures whose loader has a pattern of its own: set_swa_pattern in each load_arch_hparams (models/*.cpp)."""

WINDOWS_FLAGGED_IN_THE_FILE = ("gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35")
"""Architectures whose files have a flag for each layer, by the same functions."""

WINDOWS_OF_ALL_ATTENTION = ("lfm2",)
"""Hybrids whose layers with attention all have a window, if the file has a length."""

EXAONE_LAYERS = 64
"""EXAONE 4 has windows in its largest size only, whatever the file says."""
SMALLTHINKER_LENGTH, LLAMA_LENGTH = 4096, 8192
"""llama.cpp's own window lengths, whatever length the file has; a length of 0 there means no windows."""
