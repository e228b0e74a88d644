"""Every frame survives the way through worker/wire/frames.py, and no decoder takes the other direction's."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.wire.frames import FrameBuffer, encode_frame, inbound_decoder, outbound_decoder
from worker.wire.messages import (
    Accepted,
    AskResidency,
    BlockHash,
    BlocksChanged,
    BlocksRemoved,
    BlocksStored,
    Cancel,
    Configure,
    Conversation,
    Delta,
    Detokenize,
    Detokenized,
    DraftModelAsked,
    DraftModelFacts,
    Failed,
    FailureCode,
    Finished,
    Inbound,
    JobKey,
    Loaded,
    LoadFailed,
    Logprob,
    ModelFacts,
    Offload,
    OffPlan,
    Outbound,
    PrefixCacheFound,
    Progress,
    PromptLogprobs,
    QuestionKey,
    Refused,
    Residency,
    Sampling,
    Scheduling,
    SelfTested,
    Started,
    StepBegun,
    StepDone,
    StopReason,
    Submit,
    TokenId,
    Tokenize,
    Tokenized,
    TopToken,
    Untokenized,
    Violation,
)

LAW = settings(max_examples=60)

TEXT = st.text(max_size=20)
SIZE = st.integers(0, 2**63 - 1)
NUMBER = st.floats(allow_nan=False)
U64 = st.integers(0, 2**64 - 1)
JOB = st.integers(0, 2**63 - 1).map(JobKey)
TOKEN = st.integers(0, 2**31 - 1).map(TokenId)


def several(items: st.SearchStrategy[msgspec.Struct]) -> st.SearchStrategy[tuple[msgspec.Struct, ...]]:
    return st.lists(items, max_size=4).map(tuple)


JOBS = st.lists(JOB, max_size=4).map(tuple)
SAMPLINGS = st.builds(
    Sampling,
    seed=U64,
    temperature=NUMBER,
    top_p=NUMBER,
    top_k=st.integers(0, 2**32 - 1),
    repetition_penalty=NUMBER,
    min_p=NUMBER,
    frequency_penalty=NUMBER,
    presence_penalty=NUMBER,
    repeat_last_n=st.integers(-1, 2**31 - 1),
    typical_p=NUMBER,
    top_n_sigma=NUMBER,
    xtc_probability=NUMBER,
    xtc_threshold=NUMBER,
    dry_multiplier=NUMBER,
    dry_base=NUMBER,
    dry_allowed_length=SIZE,
    logit_bias=st.lists(st.tuples(TOKEN, NUMBER), max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    min_tokens=SIZE,
    stop_token_ids=st.lists(TOKEN, max_size=4).map(tuple),
    logprobs=st.none() | SIZE,
)
TOPS = st.builds(TopToken, TEXT, TOKEN, NUMBER, st.none() | st.binary(max_size=16))
LOGPROBS = st.builds(Logprob, TOPS, several(TOPS))
DELTAS = st.builds(Delta, JOB, TEXT, st.none() | LOGPROBS)
PLACES = ("prompt", "messages", "chat_template_kwargs", "tokens", "grammar", "json_schema", "regex")
VIOLATIONS = st.builds(Violation, st.sampled_from(PLACES), TEXT, TEXT)
TOKENS = st.lists(TOKEN, max_size=4).map(tuple)
CONVERSATIONS = st.builds(
    Conversation,
    messages=TEXT,
    tools=st.none() | TEXT,
    template_kwargs=TEXT,
    add_generation_prompt=st.booleans(),
    continue_final_message=st.booleans(),
)
PROMPTS = TEXT | TOKENS | CONVERSATIONS
QUESTION = SIZE.map(QuestionKey)
FINISHED = st.builds(Finished, JOB, st.sampled_from(get_args(StopReason)), st.none() | TEXT, st.booleans(), SIZE, SIZE)
PROMPT_LOGPROBS = st.builds(PromptLogprobs, JOB, SIZE, several(LOGPROBS))
STARTED = st.builds(Started, JOB, SIZE)
FAILED = st.builds(Failed, JOB, st.sampled_from(get_args(FailureCode)), TEXT)

SHARES = st.lists(st.floats(0, 1e9), max_size=4).map(tuple)
INBOUND: dict[type, st.SearchStrategy[Inbound]] = {
    Configure: st.builds(
        Configure,
        model_path=TEXT,
        device=TEXT,
        gpu_layers=TEXT,
        require_full_offload=st.booleans(),
        ctx_size=SIZE,
        parallel=SIZE,
        batch_size=SIZE,
        ubatch_size=SIZE,
        threads=SIZE,
        threads_batch=SIZE,
        cache_type_k=TEXT,
        cache_type_v=TEXT,
        flash_attn=TEXT,
        max_tokens_in=SIZE,
        prefill_chunk=SIZE,
        itl_target_ms=SIZE,
        is_deterministic=st.booleans(),
        prefix_cache_bytes=st.integers(-1, 2**63 - 1),
        scheduling=st.sampled_from(get_args(Scheduling)),
        prompt_lookup=st.sampled_from(("on", "own", "off")),
        draft=st.none() | st.builds(DraftModelAsked, path=TEXT, device=TEXT, n_most=SIZE, n_cells=SIZE),
        swa_full=st.sampled_from(("auto", "on", "off")),
        split_mode=st.sampled_from(("none", "layer", "row")),
        tensor_split=SHARES,
        main_gpu=st.integers(-1, 999),
        chat_template=st.none() | TEXT,
        chat_template_kwargs=TEXT,
        tells_blocks=st.booleans(),
        arena_fd=st.integers(-1, 2**20),
        prefix_cache_dir=st.none() | TEXT,
    ),
    Submit: st.builds(
        Submit,
        job=JOB,
        prompt=PROMPTS,
        max_tokens=SIZE,
        sampling=SAMPLINGS,
        stop=st.lists(TEXT, max_size=4).map(tuple),
        grammar=st.none() | TEXT,
        json_schema=st.none() | TEXT,
        regex=st.none() | TEXT,
        prompt_logprobs=st.none() | SIZE,
    ),
    Cancel: st.builds(Cancel, job=JOB),
    AskResidency: st.builds(AskResidency),
    Tokenize: st.builds(
        Tokenize, question=QUESTION, prompt=PROMPTS, add_special=st.booleans(), parse_special=st.booleans()
    ),
    Detokenize: st.builds(Detokenize, question=QUESTION, tokens=TOKENS),
}
MEDIUM = st.sampled_from(("GPU", "CPU"))
HASHES = st.lists(U64.map(BlockHash), max_size=4).map(tuple)
BLOCK_CHANGES = st.builds(
    BlocksStored, medium=MEDIUM, parent=st.none() | U64.map(BlockHash), hashes=HASHES, tokens=TOKENS
) | st.builds(BlocksRemoved, medium=MEDIUM, hashes=HASHES)
OFF_PLANS = st.builds(
    OffPlan, device=TEXT, planned_bytes=SIZE, allocated_bytes=SIZE, taken_bytes=st.none() | st.integers(-(2**60), 2**60)
)
OUTBOUND: dict[type, st.SearchStrategy[Outbound]] = {
    Progress: st.builds(Progress, percent=st.integers(0, 100)),
    Loaded: st.builds(
        Loaded,
        name=TEXT,
        quant_kind=TEXT,
        tokenizer_kind=TEXT,
        vocab_size=SIZE,
        context_length=SIZE,
        n_cells=SIZE,
        parallel=SIZE,
        resident=st.booleans(),
        backend=st.sampled_from(("cpu", "cuda", "metal", "vulkan")),
        device_index=SIZE,
        device_name=TEXT,
        memory_architecture=st.sampled_from(("vram-only", "unified", "host")),
        memory_bytes=SIZE,
        prefill_chunk=SIZE,
        prefix_cache_bytes=SIZE,
        prefix_cache_off=st.none() | TEXT,
        swa_full=st.none() | st.booleans(),
        offload=st.builds(
            Offload, gpu_layers=SIZE, layers_total=SIZE, tensor_split=SHARES, off_plan=st.lists(OFF_PLANS).map(tuple)
        ),
        draft=st.none()
        | st.builds(DraftModelFacts, name=TEXT, quant_kind=TEXT, device=TEXT, n_cells=SIZE, memory_bytes=SIZE),
        model=st.builds(
            ModelFacts,
            n_ctx_train=SIZE,
            n_params=SIZE,
            file_bytes=SIZE,
            bos_token=st.none() | TEXT,
            eos_token=st.none() | TEXT,
            pad_token=st.none() | TEXT,
            chat_template=st.none() | TEXT,
            chat_template_caps=st.lists(TEXT, max_size=3).map(tuple),
        ),
    ),
    LoadFailed: st.builds(
        LoadFailed,
        code=TEXT,
        message=TEXT,
        needed_bytes=st.none() | SIZE,
        available_bytes=st.none() | SIZE,
        device=st.none() | TEXT,
    ),
    SelfTested: st.builds(
        SelfTested,
        is_same=st.booleans(),
        differences=st.lists(TEXT, max_size=3).map(tuple),
        ways=st.lists(TEXT, max_size=3).map(tuple),
        widths=st.lists(SIZE, max_size=3).map(tuple),
        n_prompts=SIZE,
        row_multiple=SIZE,
        most_rows=SIZE,
    ),
    Accepted: st.builds(Accepted, job=JOB, prompt_tokens=SIZE),
    Refused: st.builds(Refused, job=JOB, violations=several(VIOLATIONS)),
    PrefixCacheFound: st.builds(
        PrefixCacheFound,
        n_parts=SIZE,
        n_tokens=SIZE,
        n_bytes=SIZE,
        n_dropped=SIZE,
        dropped_because=st.none() | TEXT,
    ),
    Residency: st.builds(Residency, is_resident=st.booleans(), memory_bytes=SIZE),
    Tokenized: st.builds(Tokenized, question=QUESTION, tokens=TOKENS, text=TEXT),
    Untokenized: st.builds(Untokenized, question=QUESTION, violations=several(VIOLATIONS)),
    Detokenized: st.builds(Detokenized, question=QUESTION, text=TEXT),
    BlocksChanged: st.builds(BlocksChanged, changes=several(BLOCK_CHANGES)),
    StepBegun: st.builds(StepBegun, jobs=JOBS),
    StepDone: st.builds(
        StepDone,
        started=several(STARTED),
        prefix_tokens=SIZE,
        prefix_bytes=SIZE,
        n_preempted=SIZE,
        n_yielded=SIZE,
        n_paused=SIZE,
        n_drafted=SIZE,
        n_accepted=SIZE,
        prompt_logprobs=several(PROMPT_LOGPROBS),
        deltas=several(DELTAS),
        finished=several(FINISHED),
        failed=several(FAILED),
        kind=st.sampled_from((None, "prefill", "decode")),
        cells_used=SIZE,
        sampled_at_s=NUMBER,
    ),
}


def body_of(message: Inbound | Outbound) -> bytes:
    ((_, body),) = FrameBuffer().feed(encode_frame(1, message))
    return body


def test_every_frame_of_the_contract_is_in_the_tables() -> None:
    assert set(INBOUND) == set(get_args(Inbound))
    assert set(OUTBOUND) == set(get_args(Outbound))


@LAW
@given(message=st.sampled_from(list(INBOUND)).flatmap(INBOUND.__getitem__))
def test_what_the_front_sends_is_what_the_engine_reads(message: Inbound) -> None:
    read = inbound_decoder.decode(body_of(message))
    assert read == message
    assert type(read) is type(message)


@LAW
@given(message=st.sampled_from(list(OUTBOUND)).flatmap(OUTBOUND.__getitem__))
def test_what_the_engine_sends_is_what_the_front_reads(message: Outbound) -> None:
    read = outbound_decoder.decode(body_of(message))
    assert read == message
    assert type(read) is type(message)


@pytest.mark.parametrize("kind", INBOUND)
def test_the_front_does_not_read_its_own_frames(kind: type) -> None:
    @settings(LAW, max_examples=5)
    @given(message=INBOUND[kind])
    def is_refused(message: Inbound) -> None:
        with pytest.raises(msgspec.ValidationError):
            outbound_decoder.decode(body_of(message))

    is_refused()


@pytest.mark.parametrize("kind", OUTBOUND)
def test_the_engine_does_not_read_its_own_frames(kind: type) -> None:
    @settings(LAW, max_examples=5)
    @given(message=OUTBOUND[kind])
    def is_refused(message: Outbound) -> None:
        with pytest.raises(msgspec.ValidationError):
            inbound_decoder.decode(body_of(message))

    is_refused()


@LAW
@given(message=st.sampled_from(list(INBOUND)).flatmap(INBOUND.__getitem__))
def test_frames_are_values_equal_ones_are_one_key(message: Inbound) -> None:
    again = inbound_decoder.decode(body_of(message))
    assert len({message, again}) == 1
