"""`GET /v1/models` and `/v1/models/{id}`: the one model that is served. Pure; runs on the front's event loop."""

import hashlib
from typing import Annotated, Literal

import msgspec

from worker.protocol.bodies import Count, doc
from worker.wire.messages import Loaded

OWNER = "llorch-worker"


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What the model file says of itself."""

    n_ctx_train: Annotated[Count, doc("Tokens that it was trained to read.")]
    n_params: Count
    size: Annotated[Count, doc("Bytes of the file.")]
    n_vocab: Count
    quant_kind: str


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[Count, doc("When this worker was started, in Unix seconds.")]
    owned_by: str = OWNER
    max_model_len: Annotated[Count, doc("Tokens one job may use.")]
    meta: ModelMeta


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models that are served: one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def model_card(facts: Loaded, name: str, created: int) -> ModelCard:
    return ModelCard(
        id=name,
        created=created,
        max_model_len=facts.context_length,
        meta=ModelMeta(
            n_ctx_train=facts.model.n_ctx_train,
            n_params=facts.model.n_params,
            size=facts.model.file_bytes,
            n_vocab=facts.vocab_size,
            quant_kind=facts.quant_kind,
        ),
    )


def fingerprint(facts: Loaded, version: str) -> str:
    """What answers depend on beside the request: the model, what computes it, and this worker's version."""
    of = (facts.name, facts.quant_kind, str(facts.model.file_bytes), facts.backend, facts.device_name, version)
    return "fp_" + hashlib.sha256("\0".join(of).encode()).hexdigest()[:12]
