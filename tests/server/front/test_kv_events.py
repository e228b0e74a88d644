"""The form of batches, read without our encoder; their numbers, and those that are kept."""

import asyncio
import struct

from tests.kv_mirror import Mirror, unpacked
from worker.config.settings import Settings
from worker.observe.metrics import Metrics
from worker.server.front.kv_events import MAX_BATCHES, MAX_BYTES, KvEvents
from worker.server.front.state import Front
from worker.wire.blocks import BlockHash, BlocksChanged, BlocksRemoved, BlocksStored, Medium
from worker.wire.jobs import TokenId

PARENT, FIRST, SECOND = BlockHash(7), BlockHash(2**64 - 1), BlockHash(9)
TOKENS = tuple(TokenId(token) for token in range(100_000, 100_032))


def stored(medium: Medium = "GPU", parent: BlockHash | None = PARENT) -> BlocksStored:
    return BlocksStored(medium, parent, (FIRST, SECOND), TOKENS)


class Published:
    """KV events, and what was sent of them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.events = KvEvents(lambda *batch: self.sent.append(batch), clock=lambda: 1789095808.5)


def test_a_batch_is_what_vllm_sends() -> None:
    """The fields' names and their order are those of vllm/distributed/kv_events.py at 0.26; the order means nothing to
    readers of maps, and everything to those of the bytes."""
    published = Published()
    published.events.changed((stored(), stored("CPU", None), BlocksRemoved("CPU", (SECOND, FIRST))))
    published.events.cleared()
    (_, changed), (_, cleared) = published.sent
    seconds, events, rank = unpacked(changed)
    assert (seconds, rank) == (1789095808.5, 0)
    assert [list(event.items()) for event in events] == [
        [
            ("type", "BlockStored"),
            ("block_hashes", [FIRST, SECOND]),
            ("parent_block_hash", parent),
            ("token_ids", list(TOKENS)),
            ("block_size", 16),
            ("lora_id", None),
            ("medium", medium),
            ("lora_name", None),
        ]
        for medium, parent in (("GPU", PARENT), ("CPU", None))
    ] + [[("type", "BlockRemoved"), ("block_hashes", [SECOND, FIRST]), ("medium", "CPU")]]
    clear = b"\xa4type\xb0AllBlocksCleared"
    assert cleared == b"\x93\xcb" + struct.pack(">d", 1789095808.5) + b"\x91\x81" + clear + b"\x00"


def test_numbers_count_from_zero_and_every_batch_is_kept_under_its_own() -> None:
    published = Published()
    for _ in range(5):
        published.events.cleared()
    assert [number for number, _ in published.sent] == [0, 1, 2, 3, 4]
    assert published.events.since(0) == published.sent
    assert published.events.since(3) == published.sent[3:]
    assert published.events.since(5) == published.events.since(2**64 - 1) == []


def test_the_oldest_batches_are_forgotten() -> None:
    published = Published()
    for _ in range(MAX_BATCHES + 3):
        published.events.cleared()
    assert published.events.since(0) == published.sent[3:]


def test_long_batches_are_forgotten_by_their_bytes() -> None:
    published = Published()
    long = BlocksStored("CPU", None, (FIRST,) * 2**15, TOKENS[:16] * 2**15)
    for _ in range(25):
        published.events.changed((long,))
    kept = published.events.since(0)
    assert kept == published.sent[-len(kept) :]
    assert len(kept) == MAX_BYTES // len(kept[0][1]) < 25


def test_the_blocks_of_a_dead_engine_are_cleared_and_numbers_go_on() -> None:
    published, mirror = Published(), Mirror()

    async def play() -> None:
        front = Front(Settings(model="m.gguf", worker_id="w-1"), Metrics("w-1"))
        front.kv_events = published.events
        front.on_blocks_changed(BlocksChanged(changes=(stored(parent=None),)))
        front.on_restarting("it was ended by SIGKILL", "")
        front.on_blocks_changed(BlocksChanged(changes=(stored(parent=None),)))
        assert b'worker_kv_event_batches_total{worker_id="w-1"} 3.0' in front.scrape(None)[0]

    asyncio.run(play())
    assert [number for number, _ in published.sent] == [0, 1, 2]
    n_blocks = []
    for _, batch in published.sent:
        mirror.hear_batch(batch)
        n_blocks.append(len(mirror.blocks("GPU")))
    assert n_blocks == [2, 0, 2]
