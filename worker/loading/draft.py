"""A draft model beside the served one: whether both speak of the same tokens, and what it adds to their memory."""

from worker.errors import ModelLoadFailed
from worker.llama.model import Model
from worker.plan.buffers import BufferSizes


def bytes_beside(served: Model, draft: Model, sizes: BufferSizes) -> int:
    """Return how many bytes of a draft model's buffers are on the devices of the served model."""
    if served.device.is_gpu:
        return sum(map(sizes.on_device, served.device_names))
    return sizes.total_bytes - sum(sizes.on_device(gpu.name) for gpu in draft.devices if gpu.is_gpu)


def check_same_vocabulary(path: str, draft: Model, served: Model) -> None:
    """Raises: ModelLoadFailed unless every token means the same to both models, as drafted tokens must."""
    difference = _difference(draft, served)
    if difference is not None:
        raise ModelLoadFailed(
            f"--draft-model {path}: its vocabulary is not the model's: {difference}; use a draft model of the same "
            "family, or remove --draft-model"
        )


def _difference(draft: Model, served: Model) -> str | None:
    """The first difference of two vocabularies, in words."""
    if draft.n_vocab != served.n_vocab:
        return f"it has {draft.n_vocab} tokens, the model's has {served.n_vocab}"
    for token, (own, other) in enumerate(zip(draft.token_texts(), served.token_texts(), strict=True)):
        if own != other:
            return f"token {token} is {_shown(own)} there, {_shown(other)} in the model's"
    specials = served.special_tokens()
    for kind, token_id in draft.special_tokens().items():
        if specials[kind] != token_id:
            return f"its {kind} token is {token_id}, the model's is {specials[kind]}"
    own_ends, ends = draft.ends.tolist(), served.ends.tolist()
    if own_ends != ends:
        return f"its answers end with the tokens {own_ends}, the model's with {ends}"
    return None


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace"))
