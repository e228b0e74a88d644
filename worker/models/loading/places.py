"""The places of a model and of its draft model, which are planned by llama.cpp's dry run in a process of its own, which
is this file run as a program.

A dry run simulates all allocations of a load, and reads the file's header alone. The process ends before the load
begins: what the library allocates even so is gone then (recurrent states, a list of cells, a GPU's driver), and a file
over which it ends its process ends this one, with a reason that the engine can report.

On two cores of a server it takes 0.5 s of a start for a vocabulary of 49 thousand tokens, 0.8 s for 152 thousand. Each
further plan takes 10 ms, and another number of layers on a GPU as long as the vocabulary.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

import worker.llama  # noqa: F401 - before numpy, as in the room's __init__
from worker.config.engine_settings import Configure, inbound_decoder
from worker.errors import InsufficientMemory, ModelLoadFailed, StartupError
from worker.llama.context import Context
from worker.llama.devices import breakdown, devices
from worker.llama.invariance import own_types
from worker.llama.kernels import choose_kernels
from worker.llama.library import LAST_WORDS, LogLine, open_library
from worker.llama.model import Model
from worker.llama.repack import may_repack
from worker.llama.seq_ids import seq_ids_of
from worker.models.facts.info import ModelInfo, read_info
from worker.models.loading.contexts import bare_contexts, context_sizes, split_of
from worker.models.plan.abilities import with_heads
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.devices import Device
from worker.models.plan.memory import Need, Plan
from worker.models.plan.pair import place_pair
from worker.models.plan.placement import Group, Placement, place, trials_of
from worker.models.upstream.numbers import CELL_STEP
from worker.models.upstream.wording import FALSE_ALARM
from worker.wire.encoding import encode_json, encode_messagepack
from worker.wire.load import KernelsChosen

MAX_S = 300.0
"""A dry run that takes longer is given up: the disk does not answer."""

MAX_CELLS = 1 << 20
"""The most cells of a dry run, because the library lists them, 60 bytes for each. All that it takes beyond grows in
proportion."""

MAX_STATES_SHARE = 2
"""The states of a dry run, which are really allocated, take at most this part of the free memory."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places, and the kernels for which they were planned."""

    kernels: KernelsChosen
    served: Placement
    draft: Placement | None = None


class _Asked(msgspec.Struct, frozen=True):
    config: Configure
    available_bytes: int
    is_estimate: bool


_asked_decoder = msgspec.msgpack.Decoder(_Asked, dec_hook=inbound_decoder.dec_hook)


class _Answer(msgspec.Struct, frozen=True):
    """The places, or what an InsufficientMemory or another StartupError says; without bytes it is another one."""

    places: Places | None = None
    refusal: str = ""
    needed_bytes: int = 0
    available_bytes: int = 0
    device: str = ""


def places_of(config: Configure, available_bytes: int, *, is_estimate: bool = False) -> Places:
    """The places in this machine's memory now; a successor's are its predecessor's. With `is_estimate` the memory is
    no limit, but for the default number of cells.

    Raises: InsufficientMemory, ModelLoadFailed.
    """
    if config.predecessor is not None:
        return _found_again(msgspec.json.decode(config.predecessor.places, type=Places), devices())
    answer, said = _dry_run(_Asked(config, available_bytes, is_estimate))
    if answer.places is not None:
        return _found_again(answer.places, devices())
    if answer.needed_bytes:
        raise InsufficientMemory(
            answer.refusal,
            needed_bytes=answer.needed_bytes,
            available_bytes=answer.available_bytes,
            device=answer.device,
        )
    if not is_estimate:
        sys.stderr.write(said)
        sys.stderr.flush()
    raise ModelLoadFailed(answer.refusal)


def _dry_run(asked: _Asked) -> tuple[_Answer, str]:
    """The answer, and the library's warnings and errors as to_stderr writes them.

    Raises: ModelLoadFailed where the library ends the process, with its last line.
    """
    command = [sys.executable, "-P", "-m", __name__]
    path = asked.config.model_path
    try:
        child = subprocess.run(
            command, input=encode_messagepack(asked), capture_output=True, timeout=MAX_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelLoadFailed(f"{path}: llama.cpp has not read it within {MAX_S:.0f} s") from None
    said = child.stderr.decode(errors="replace")
    if child.returncode == 0:
        return msgspec.json.decode(child.stdout, type=_Answer), said
    lines = said.splitlines()
    if child.returncode > 0:
        raise ModelLoadFailed(f"the memory of {path} cannot be planned: {lines[-1] if lines else ''}")
    # The assertion over which the library ended the process, with the name of its source file.
    words = next((line for line in lines if line.startswith(LAST_WORDS)), "").removeprefix(LAST_WORDS)
    place, colon, assertion = words.partition(": ")
    words = place.rpartition("/")[2] + colon + assertion
    words = words or f"it was ended by {signal.Signals(-child.returncode).name}"
    raise ModelLoadFailed(f"{path}: llama.cpp cannot compute with this model: {words}")


def to_stderr(line: LogLine) -> None:
    """The front reads the level from the first words (server/front/state.py)."""
    if line.level in ("warning", "error"):
        level = "" if FALSE_ALARM in line.text else f" {line.level}"
        sys.stderr.write(f"llama.cpp{level}: {line.text}\n")
        sys.stderr.flush()


def _found_again(places: Places, available: Seq[Device]) -> Places:
    """The same on the devices as they are now. Raises: ModelLoadFailed where one is gone."""

    def now(placement: Placement) -> Placement:
        by_name = {device.name: device for device in available}
        gone = [device.title for device in placement.group.devices if device.name not in by_name]
        if gone:
            raise ModelLoadFailed(f"{gone[0]} is no longer there")
        found = tuple(by_name[device.name] for device in placement.group.devices)
        return replace(placement, group=replace(placement.group, devices=found))

    return replace(places, served=now(places.served), draft=places.draft and now(places.draft))


# ── in the process of a dry run ──────────────────────────────────────────────────────────────────


class DryRun:
    """A placement.DryRun by the library. It holds one model, without its weights."""

    def __init__(self, available_bytes: int, *, repacks: bool) -> None:
        self._available_bytes, self._repacks = available_bytes, repacks
        self._model: Model | None = None
        self._of: object = None
        self._states: BufferSizes | None = None
        """The states of one sequence id of the model, once they are known."""
        self._known: dict[object, Need] = {}

    def __call__(self, config: Configure, info: ModelInfo, group: Group, n_gpu_layers: int, plan: Plan) -> Need:
        if plan.n_cells > MAX_CELLS:
            half, whole = (
                self(config, info, group, n_gpu_layers, replace(plan, n_cells=n)) for n in (MAX_CELLS // 2, MAX_CELLS)
            )
            return replace(whole, buffers=_extended(half.buffers, whole.buffers, plan.n_cells / MAX_CELLS))
        of = info.path, group, n_gpu_layers
        if (of, plan) not in self._known:
            if self._model is None or self._of != of:
                self._load(config, info, group, n_gpu_layers)
                self._of, self._states = of, None
            assert self._model is not None
            self._known[of, plan] = self._need(config, info, self._model, plan)
        return self._known[of, plan]

    def _load(self, config: Configure, info: ModelInfo, group: Group, n_gpu_layers: int) -> None:
        if self._model is not None:
            self._model.close()
        self._model = None
        self._model = Model.load(
            info.path,
            device=group.devices[0],
            n_gpu_layers=n_gpu_layers,
            on_progress=lambda _: None,
            split=split_of(config, group),
            split_mode=config.split_mode,
            loads_heads=info.loads_heads,
            may_repack=self._repacks,
            is_dry=True,
        )

    def _need(self, config: Configure, info: ModelInfo, model: Model, plan: Plan) -> Need:
        if model.can_rewind:
            return _need_of(config, info, model, plan, BufferSizes())
        states = self._states = self._states or _states_of(config, model, plan)
        all_states = states.times(_n_seq_ids(config, model, plan) * (1 + plan.n_snapshots))
        free_bytes = sum(gpu.free_bytes for gpu in model.devices if gpu.is_gpu) or self._available_bytes
        if all_states.total_bytes <= free_bytes // MAX_STATES_SHARE:
            return _need_of(config, info, model, plan, all_states)
        alone = replace(plan, parallel=1, n_snapshots=0)
        few = _need_of(config, info, model, alone, states.times(_n_seq_ids(config, model, alone)))
        others = tuple(one for one in few.buffers.buffers if one.kind != "RS")
        return replace(few, buffers=BufferSizes(others) + all_states)


def _n_seq_ids(config: Configure, model: Model, plan: Plan) -> int:
    sizes = context_sizes(config, model, plan)
    return seq_ids_of(model, sizes["n_seq_max"], swa_full=plan.swa_full, has_padding=config.deterministic).n_all


def _need_of(config: Configure, info: ModelInfo, model: Model, plan: Plan, states: BufferSizes) -> Need:
    """The buffers that the library would allocate. `states`: the recurrent states among them, which it counts as cells
    of the model's memory.
    """
    contexts = bare_contexts(model, plan.parallel, context_sizes(config, model, plan), has_head=info.loads_heads)
    checkpoint_bytes = contexts[0].kv.n_state_bytes
    found = list(states.buffers)
    for context in contexts:
        for one in breakdown(context.handle).buffers:
            if context is not contexts[0] and one.kind == "model":
                continue
            n_states = states.on_device(one.name) if context is contexts[0] and one.kind == "KV" else 0
            found.append(replace(one, size_bytes=one.size_bytes - n_states))
        found += [one for one in context.sizes.buffers if one.kind == "rows"]
        found.append(Buffer("CPU", "output", 4 * context.n_outputs * model.n_vocab))
        context.close()
    return Need(BufferSizes(tuple(found)), checkpoint_bytes)


def _states_of(config: Configure, model: Model, plan: Plan) -> BufferSizes:
    """The recurrent states of one sequence id: what one slot more takes beyond a slot's cells."""
    sizes = context_sizes(config, model, replace(plan, n_cells=CELL_STEP, n_snapshots=0))
    found = []
    for n_slots in (1, 2):
        context = Context(model, **{**sizes, "n_seq_max": n_slots, "n_rows": 0, "has_padding": False})
        found.append((context.n_seq_ids, breakdown(context.handle)))
        context.close()
    (n_few, few), (n_more, more) = found
    return BufferSizes(
        tuple(
            Buffer(one.name, "RS", (one.size_bytes - few.of_kind("KV", [one.name])) // (n_more - n_few))
            for one in more.buffers
            if one.kind == "KV"
        )
    )


def _extended(half: BufferSizes, whole: BufferSizes, factor: float) -> BufferSizes:
    """The buffers of `factor` times as many cells as `whole` has, of which `half` has a half."""
    rest = {(one.name, one.kind): one.size_bytes for one in half.buffers}
    grown = ((one, one.size_bytes - rest.get((one.name, one.kind), 0)) for one in whole.buffers)
    return BufferSizes(
        tuple(replace(one, size_bytes=one.size_bytes + int(2 * step * (factor - 1))) for one, step in grown)
    )


def plan_here(config: Configure, available_bytes: int, *, is_estimate: bool = False) -> Places:
    """The places, planned in this process. Raises: as `places_of`, and BadModelFile."""
    open_library()
    info = with_heads(read_info(Path(config.model_path)), config)
    kernels = choose_kernels(config, info)
    infos = [info] if config.draft_path is None else [info, read_info(Path(config.draft_path))]
    repacks = not config.no_repack and may_repack(infos, keeps_bits=config.must_be_invariant, own_types=own_types())
    dry_run = DryRun(available_bytes, repacks=repacks)
    if is_estimate:
        (trial,) = trials_of(config, info, devices(), available_bytes, dry_run)
        return Places(kernels, trial.estimate())
    if config.draft_path is None:
        return Places(kernels, place(config, info, devices(), available_bytes, dry_run))
    return Places(kernels, *place_pair(config, (infos[0], infos[1]), devices(), available_bytes, dry_run))


def main() -> None:
    open_library(to_stderr)
    asked = _asked_decoder.decode(sys.stdin.buffer.read())
    try:
        answer = _Answer(plan_here(asked.config, asked.available_bytes, is_estimate=asked.is_estimate))
    except InsufficientMemory as error:
        answer = _Answer(None, str(error), error.needed_bytes, error.available_bytes, error.device or "")
    except StartupError as error:
        answer = _Answer(None, str(error))
    sys.stdout.buffer.write(encode_json(answer))


if __name__ == "__main__":
    main()
