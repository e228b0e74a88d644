"""The frames that are neither of a job (jobs.py) nor of the load (load.py): refusals, questions about tokens, cached
blocks; and the unions of all. The first frame to an engine is a dataclass (config/engine_settings.py).
"""

from typing import Literal, NewType

import msgspec

from worker.wire.jobs import Accepted, Cancel, Frame, JobKey, Prompt, StepBegun, StepDone, Submit, TokenId
from worker.wire.load import AskResidency, Loaded, LoadFailed, PrefixCacheFound, Progress, Residency, Warned

QuestionKey = NewType("QuestionKey", int)
"""The front's internal number for a question about tokens, never reused."""
BlockHash = NewType("BlockHash", int)
"""A u64 for 16 tokens and everything before them; engine/kv_blocks.py computes it."""
Medium = Literal["GPU", "CPU"]
"""The place of a block's cells, in vLLM's words, whatever the device is: in the KV memory that steps compute in
("GPU"), or in the prefix cache's copies in main memory ("CPU")."""


class Overflow(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of a prompt with too many tokens."""

    n_tokens: int
    most: int
    """The context's length, or --max-tokens-in."""


class Violation(msgspec.Struct, frozen=True, array_like=True):
    """A rule that the request breaks and only the engine can check: context_length(N), max_tokens_in(K), or one of
    constraints."""

    field: Literal["prompt", "messages", "tokens", "grammar", "json_schema", "regex", "prediction", "tools"]
    constraint: str
    message: str
    overflow: Overflow | None = None
    """The numbers, if the rule is context_length(N) or max_tokens_in(K)."""


class Refused(Frame, frozen=True, kw_only=True):
    """The job is answered with a 400 that names all its violations, at least one."""

    job: JobKey
    violations: tuple[Violation, ...]


class Tokenize(Frame, frozen=True, kw_only=True):
    """Asks for the tokens and the text of a prompt. The intake thread answers with Tokenized or Untokenized while steps
    run on."""

    question: QuestionKey
    prompt: Prompt
    add_special: bool = True
    """True if BOS comes first if the model wants it; for a text only."""
    parse_special: bool = True
    """True if names of special tokens are parsed as these tokens; for a text only."""


class Tokenized(Frame, frozen=True, kw_only=True):
    """The tokens and the text of a prompt."""

    question: QuestionKey
    tokens: tuple[TokenId, ...]
    text: str
    """The prompt's text: for a conversation what the template made of it; for tokens theirs, special ones by their
    names, with U+FFFD for bytes that are no whole character."""


class Untokenized(Frame, frozen=True, kw_only=True):
    """The reasons why a question has no answer, at least one."""

    question: QuestionKey
    violations: tuple[Violation, ...]


class _BlocksEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of the events about blocks, in the form in which routers read them (vllm/distributed/kv_events.py of vLLM
    0.26). Fields that they require are there even if they are null."""


class BlockStored(_BlocksEvent, frozen=True, kw_only=True):
    """Whole blocks that follow each other are cached now, and were not before."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    """The block before the first; None at the start of a prompt."""
    token_ids: tuple[TokenId, ...]
    """The tokens of all the blocks, the same number for each."""
    block_size: int
    lora_id: None = None
    medium: Medium
    lora_name: None = None


class BlockRemoved(_BlocksEvent, frozen=True, kw_only=True):
    """Blocks are gone, children before their parents."""

    block_hashes: tuple[BlockHash, ...]
    medium: Medium


class AllBlocksCleared(_BlocksEvent, frozen=True, kw_only=True):
    """The blocks of all media are gone: there is a new engine, or none. The front says so."""


class BlocksChanged(Frame, frozen=True, kw_only=True):
    """The changes of the cached blocks since the last such frame, in order. A new engine has no blocks."""

    changes: tuple[BlockStored | BlockRemoved, ...]


Inbound = Submit | Cancel | AskResidency | Tokenize
_OfJobs = Accepted | Refused | StepBegun | StepDone
_OfTheLoad = Progress | Warned | Loaded | LoadFailed | PrefixCacheFound | Residency
Outbound = _OfJobs | _OfTheLoad | Tokenized | Untokenized | BlocksChanged

outbound_decoder: msgspec.msgpack.Decoder[Outbound] = msgspec.msgpack.Decoder(Outbound)
