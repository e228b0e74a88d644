"""`GET /v1/models` and `/v1/models/{id}`: the one model that is served."""

import hashlib
from typing import Annotated, Literal

import msgspec

from worker.wire.encoding import Count, doc
from worker.wire.load import Loaded

OWNER = "llorch-worker"


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of the model file."""

    n_ctx_train: Annotated[Count, doc("Context length of the training, in tokens.")]
    n_params: Count
    size: Annotated[Count, doc("Size of the file in bytes.")]
    n_vocab: Count
    quant_kind: str
    chat_format: Annotated[
        str | None,
        doc("Form of calls and reasoning, and where it is from: `hermes (template)`. null without a chat template."),
    ]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[Count, doc("Start of this worker, Unix time in seconds.")]
    owned_by: str = OWNER
    max_model_len: Annotated[Count, doc("Most tokens that one job may use.")]
    meta: ModelMeta


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of the served models, which has one entry."""

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
            chat_format=facts.model.chat_format.title if facts.model.chat_template else None,
        ),
    )


def fingerprint(facts: Loaded, version: str) -> str:
    """A digest of everything except the request that answers depend on: the model, its device and this worker's
    version."""
    parts = (facts.name, facts.quant_kind, str(facts.model.file_bytes), facts.backend, facts.device_name, version)
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
