"""The place of a model: its device or devices, how many of its layers are on each, and the plan that has room there.

Owns the meaning of `--device auto`, `--gpu-layers` and `--split-mode`, the sums of each place, and the refusal when
there is too little room. Decides from model infos, from devices as they describe themselves, and from what the
library's dry run says that a plan takes; calls no library.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import NamedTuple

from worker.config.engine_settings import Configure, SwaFull
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.models.facts.info import ModelInfo
from worker.models.plan.abilities import with_snapshots
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.devices import Device, candidates
from worker.models.plan.memory import (
    KV_SHARE,
    WIDER_UBATCHES,
    Need,
    Plan,
    largest,
    most_useful_cells,
    plan_of,
    prefix_cache_bytes,
)
from worker.models.upstream.numbers import CELL_STEP

HOST_SHARE = 0.9
"""The share of the host's available memory that is planned with; the rest is left to the front and to everything else
that grows."""

GPU_SHARE, MAX_LEFT_BYTES = 0.9, 2**30
"""The share of a GPU's free memory that is planned with, and the most that is left: drivers and kernels allocate while
they compute. A GiB is what llama.cpp's own fitting leaves."""

MIN_AUTO_CELLS = 4096
"""The default context is not cut further for the sake of layers on a GPU, as in llama.cpp's own fitting."""

MAX_SHARE_TWICE = 0.1
"""The largest share of the weights that may be in main memory twice. A mapped file is there as a whole, and repacked
weights are there a second time. If these are more than this share, the file is read and not mapped."""

MAPPED_ALIGNMENT = 32
"""TENSOR_ALIGNMENT (ggml-impl.h): ggml ends the process where a mapping's first weight begins elsewhere."""


@dataclass(frozen=True, slots=True)
class Share:
    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    """The compute buffers, with the logits that are kept to be read."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    def __add__(self, other: "Share") -> "Share":
        return Share(
            self.weights_bytes + other.weights_bytes,
            self.kv_bytes + other.kv_bytes,
            self.compute_bytes + other.compute_bytes,
        )


@dataclass(frozen=True, slots=True)
class InMain:
    as_in_file: int = 0
    """Weights that are computed with as the file has them."""
    repacked: int = 0
    """Weights that are laid out anew."""
    left_in_file: int = 0
    """The bytes of the repacked weights in the file, if nothing else needs them."""
    can_be_mapped: bool = True

    @property
    def is_mapped(self) -> bool:
        """True if the file should be mapped: all workers then share its pages, and the system can reclaim them."""
        return self.can_be_mapped and self.left_in_file <= MAX_SHARE_TWICE * (self.as_in_file + self.repacked)

    @property
    def total_bytes(self) -> int:
        """A mapping reaches from its first weight to its last, and has been read through when the model is loaded."""
        return self.as_in_file + self.repacked + (self.left_in_file if self.is_mapped else 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that have a model together: the CPU alone, a GPU, or several GPUs of one backend."""

    devices: tuple[Device, ...]
    shares: tuple[float, ...]
    """Each device's part of the GPU layers; none for the CPU."""

    @property
    def is_gpu(self) -> bool:
        return self.devices[0].is_gpu


@dataclass(frozen=True, slots=True)
class Placement:
    """The numbers that llama.cpp will be asked for, and the place of each part."""

    group: Group
    n_gpu_layers: int
    """It counts the output layer; 0 on a CPU."""
    n_layers: int
    plan: Plan
    need: Need
    host: Share
    gpus: tuple[Share, ...]
    """The parts in the order of the group's devices; none for the CPU."""
    weights_in_main: InMain
    """The layout of the weights in `host`, which is also how they are to be loaded."""

    @property
    def device(self) -> Device:
        return self.group.devices[0]

    @property
    def is_complete(self) -> bool:
        """Every layer is on the devices that were chosen."""
        return not self.group.is_gpu or self.n_gpu_layers == self.n_layers

    @property
    def main_memory(self) -> Share:
        """All that lies there, with what is on GPUs that have no memory of their own."""
        both = zip(self.group.devices, self.gpus, strict=False)
        return sum((part for device, part in both if device.memory_architecture != "vram-only"), self.host)


DryRun = Callable[[Configure, ModelInfo, Group, int, Plan], Need]
"""The library's need for a model with a plan, if a group has this number of its layers."""


def place(
    config: Configure, info: ModelInfo, available: Seq[Device], main_memory_bytes: int, dry_run: DryRun
) -> Placement:
    """The first group of devices that has room for the whole plan; else the one that has room for most layers.

    `main_memory_bytes`: what is available of it. Full offload, and an asked-for number of layers, are kept or refused.
    `--swa-full auto` takes full-size sliding windows where these cost neither cells, jobs nor layers on a GPU.
    Raises: InsufficientMemory: before anything is loaded, with what would fit. ModelLoadFailed for devices that are not
    there, and for what the dry run refuses.
    """

    def placed(swa_full: SwaFull) -> Placement:
        wish = replace(config, swa_full=swa_full)
        return _place(trials_of(wish, info, available, main_memory_bytes, dry_run), config, info.block_count + 1)

    def offered(by: Placement) -> tuple[Group, int, int, int]:
        return by.group, by.n_gpu_layers, by.plan.n_cells, by.plan.parallel

    if info.windows is None or config.swa_full != "auto":
        return placed(config.swa_full)
    small = placed("off")
    try:
        full = placed("on")
    except InsufficientMemory:
        return small
    return full if offered(full) == offered(small) else small


def trials_of(
    config: Configure, info: ModelInfo, available: Seq[Device], main_memory_bytes: int, dry_run: DryRun
) -> list["Trial"]:
    """The groups that a configuration allows, best first. Raises: as `groups_for`."""
    return [Trial(config, info, group, main_memory_bytes, dry_run) for group in groups_for(config, available)]


def prefix_cache_limit(config: Configure, placement: Placement, available_bytes: int) -> int:
    """Return how many bytes finished jobs' cells may take, of the `available_bytes` of main memory before the load.

    Raises: InsufficientMemory for more than the placement leaves. A successor's limit was checked, as its plan was.
    """
    if config.predecessor is not None:
        return config.predecessor.prefix_cache_bytes
    left_bytes = int(available_bytes * HOST_SHARE) - placement.main_memory.total_bytes
    return prefix_cache_bytes(config.prefix_cache_bytes, placement.plan, placement.need, left_bytes)


def _place(trials: Seq["Trial"], config: Configure, n_layers: int) -> Placement:
    on_gpus = [trial for trial in trials if trial.group.is_gpu]
    _check_wishes(config, n_layers, has_gpus=bool(on_gpus))
    for trial in on_gpus:
        if found := trial.whole(MIN_AUTO_CELLS if trial.may_be_partial else CELL_STEP):
            return found
    if on_gpus and not on_gpus[0].may_be_partial:
        raise on_gpus[0].refusal()
    partial = [found for trial in on_gpus if (found := trial.most_layers())]
    if partial:
        return max(partial, key=lambda found: found.n_gpu_layers)
    for trial in [*trials[len(on_gpus) :], *on_gpus]:
        if found := trial.whole(CELL_STEP):
            return found
    raise trials[-1].refusal()


def _check_wishes(config: Configure, n_layers: int, *, has_gpus: bool) -> None:
    """Raises: ModelLoadFailed where a flag asks for GPUs and there are none, or for less than another flag demands.

    Without this the CPU would serve, and the flag would say what is not so.
    """
    layers, is_auto = config.gpu_layers, config.device == "auto"
    wishes = {
        "--require-full-offload": config.require_full_offload and is_auto,
        f"--gpu-layers {layers}": config.wants_layers and is_auto,
        f"--split-mode {config.split_mode}": config.split_mode != "none",
    }
    wished = next((flag for flag, is_wished in wishes.items() if is_wished), None)
    if wished is not None and not has_gpus:
        raise ModelLoadFailed(
            f"{wished}, but no GPU was found to put the model on; `llorch-worker devices` explains why; "
            f"remove {wished.split()[0]} to serve from the CPU"
        )
    if has_gpus and config.require_full_offload and layers.isdecimal() and int(layers) < n_layers:
        raise ModelLoadFailed(
            f"--gpu-layers {layers} leaves {n_layers - int(layers)} of {n_layers} layers off the device, and "
            "--require-full-offload forbids that; use --gpu-layers all"
        )


def groups_for(config: Configure, available: Seq[Device]) -> list[Group]:
    """The groups a configuration allows, best first, the CPU last.

    Raises: ModelLoadFailed for devices that are not there, and for shares that are not one for each GPU.
    """
    # Without layers for a GPU, a GPU is used only if a flag names it.
    is_for_cpu = config.device == "auto" and config.main_gpu is None and config.wants_no_layers
    found = candidates("cpu" if is_for_cpu else config.device, available)
    if config.split_mode == "none" and config.main_gpu is None:
        return [Group((device,), (1.0,) if device.is_gpu else ()) for device in found]
    backends = list(dict.fromkeys(device.backend for device in found if device.is_gpu))
    if config.main_gpu is not None or config.shares:
        # Who counts the GPUs means those of one backend, and means GPUs.
        if not backends and config.main_gpu is not None:
            raise ModelLoadFailed(f"--main-gpu {config.main_gpu} does not exist: no GPU was found")
        if not backends:
            raise ModelLoadFailed("--tensor-split needs GPUs, but no GPU was found")
        return [_gpu_group(config, backends[0], available)]
    groups = [_gpu_group(config, backend, available) for backend in backends]
    return [*groups, *(Group((device,), ()) for device in found if not device.is_gpu)]


def _gpu_group(config: Configure, backend: str, available: Seq[Device]) -> Group:
    """All GPUs of one backend, or the main one of them. llama.cpp's own shares are their free memory, too."""
    gpus = [device for device in available if device.is_gpu and device.backend == backend]
    names = ", ".join(gpu.name for gpu in gpus)
    if config.split_mode == "none":
        assert config.main_gpu is not None
        if config.main_gpu >= len(gpus):
            raise ModelLoadFailed(f"--main-gpu {config.main_gpu} does not exist; the {len(gpus)} GPUs are {names}")
        return Group((gpus[config.main_gpu],), (1.0,))
    if config.shares and len(config.shares) != len(gpus):
        raise ModelLoadFailed(
            f"--tensor-split has {len(config.shares)} shares, but there are {len(gpus)} GPUs: {names}"
        )
    by_memory = tuple(float(gpu.free_bytes) for gpu in gpus)
    shares = next((shares for shares in (config.shares, by_memory) if any(shares)), (1.0,) * len(gpus))
    return Group(tuple(gpus), shares)


class Shortage(NamedTuple):
    place: str
    part: Share
    available_bytes: int


class Trial:
    """One group of devices, and what there is room for on it."""

    def __init__(
        self, config: Configure, info: ModelInfo, group: Group, main_memory_bytes: int, dry_run: DryRun
    ) -> None:
        self.group = group
        self.may_be_partial = group.is_gpu and config.gpu_layers == "auto" and not config.require_full_offload
        """True if this room may choose how many layers are on the GPU."""
        self._config, self._info, self._dry_run = config, info, dry_run
        self._n_layers = info.block_count + 1
        self._free_bytes = sum(device.free_bytes for device in group.devices) if group.is_gpu else main_memory_bytes
        self._main_room = int(main_memory_bytes * HOST_SHARE)
        if not group.is_gpu:
            self._n_asked = 0
        elif config.require_full_offload or config.gpu_layers in ("all", "auto"):
            self._n_asked = self._n_layers
        else:
            self._n_asked = min(int(config.gpu_layers), self._n_layers)

    def whole(self, min_cells: int) -> Placement | None:
        """The plan with the asked layers, where there is room for them; without a number, with all of them. Cells that
        were not asked for are as many as fit, and not fewer than `min_cells` of those that are wanted.
        """
        wanted = self._wanted_cells()
        n_cells = self._max_cells(wanted)
        if n_cells < (wanted if self._config.ctx_size else min(min_cells, wanted)):
            return None
        return self._with_snapshots(self._widened(self._plan_of(n_cells)), self._n_asked)

    def most_layers(self) -> Placement | None:
        """The plan with as many layers as there is room for; None for none."""
        wanted = self._wanted_cells()
        plan = self._plan_of(wanted if self._config.ctx_size else min(MIN_AUTO_CELLS, wanted))
        n_gpu_layers = self._most_layers(plan, self._n_layers)
        return self._with_snapshots(plan, n_gpu_layers) if n_gpu_layers else None

    def estimate(self) -> Placement:
        """The plan with the asked layers and the wanted cells, whether or not there is room for it."""
        return self._with_snapshots(self._plan_of(self._wanted_cells()), self._n_asked, is_room_counted=False)

    def refusal(self) -> InsufficientMemory:
        """Return the error that says what is missing for the asked layers and the asked or else the smallest context,
        and what would fit.
        """
        plan = self._plan_of(self._config.ctx_size or CELL_STEP)
        lacking = self._shortage(self._placement(plan, self._n_asked))
        assert lacking is not None, "there was no room"
        n_cells = self._max_cells(plan.n_cells)
        n_fitting = 0 if self._config.require_full_offload else self._most_layers(plan, self._n_asked)
        fits = [f"the largest --gpu-layers that fits is {n_fitting}"] * bool(n_fitting)
        fits += [f"the largest --ctx-size that fits is {n_cells}"] * bool(n_cells)
        advice = " and ".join(fits) or "no context fits: free memory, or choose a smaller model or --ubatch-size"
        return InsufficientMemory(
            f"not enough memory on {lacking.place}: {_mib(lacking.part.total_bytes)} needed "
            f"(weights {_mib(lacking.part.weights_bytes)}, KV cache of {plan.n_cells} cells "
            f"{_mib(lacking.part.kv_bytes)}, compute about {_mib(lacking.part.compute_bytes)}), "
            f"{_mib(lacking.available_bytes)} available; {advice}",
            needed_bytes=lacking.part.total_bytes,
            available_bytes=lacking.available_bytes,
            device=lacking.place,
        )

    def _plan_of(self, n_cells: int) -> Plan:
        return plan_of(self._config, self._info, n_cells)

    def _wanted_cells(self) -> int:
        """The cells that were asked for, or the most useful ones within 1 / KV_SHARE of what is free."""
        most = most_useful_cells(self._config, self._info)
        if self._config.ctx_size:
            return most
        limit_bytes = self._free_bytes // KV_SHARE

        def suits(n_cells: int) -> bool:
            return self._need(self._plan_of(n_cells), self._n_asked).kv_bytes <= limit_bytes

        return max(CELL_STEP, largest(most, suits))

    def _max_cells(self, most: int) -> int:
        return largest(most, lambda n_cells: self._fits(self._plan_of(n_cells), self._n_asked))

    def _most_layers(self, plan: Plan, below: int) -> int:
        """The largest number of GPU layers, less than `below`, that there is room for; 0 for none. Each more takes more
        of the GPUs and less of main memory.
        """

        def suits(n_layers: int) -> bool:
            return n_layers < below and self._lacking_gpu(self._placement(plan, n_layers)) is None

        fitting = largest(below, suits, step=1)
        return fitting if fitting and self._fits(plan, fitting) else 0

    def _widened(self, plan: Plan) -> Plan:
        """The plan with the widest micro-batch that leaves as many cells and jobs, where none was asked for."""
        if self._config.ubatch_size or not self.group.is_gpu or self._config.deterministic:
            return plan
        for size in WIDER_UBATCHES:
            wider = replace(plan, ubatch_size=size)
            if size <= self._config.batch_size and self._fits(wider, self._n_asked):
                return wider
        return plan

    def _with_snapshots(self, plan: Plan, n_gpu_layers: int, *, is_room_counted: bool = True) -> Placement:
        """The plan with as many snapshots of recurrent states as it leaves room for, if there are to be drafts."""

        def fits(larger: Plan) -> bool:
            return not is_room_counted or self._fits(larger, n_gpu_layers)

        need = self._need(plan, n_gpu_layers)
        return self._placement(with_snapshots(self._info, self._config, plan, need, fits), n_gpu_layers)

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    def _need(self, plan: Plan, n_gpu_layers: int) -> Need:
        return self._dry_run(self._config, self._info, self.group, n_gpu_layers, plan)

    def _placement(self, plan: Plan, n_gpu_layers: int) -> Placement:
        need = self._need(plan, n_gpu_layers)
        names = [device.name for device in self.group.devices if device.is_gpu]
        in_main, host, gpus = spread(self._info, need.buffers, names)
        return Placement(self.group, n_gpu_layers, self._n_layers, plan, need, host, gpus, in_main)

    def _fits(self, plan: Plan, n_gpu_layers: int) -> bool:
        return self._shortage(self._placement(plan, n_gpu_layers)) is None

    def _shortage(self, made: Placement) -> Shortage | None:
        """The first GPU, or else the main memory, that has too little room."""
        if (lacking := self._lacking_gpu(made)) is not None:
            return lacking
        if made.main_memory.total_bytes <= self._main_room:
            return None
        name = "main memory" if self.group.is_gpu else made.device.title
        return Shortage(name, made.main_memory, self._main_room)

    def _lacking_gpu(self, made: Placement) -> Shortage | None:
        for device, part in zip(self.group.devices, made.gpus, strict=False):
            if part.total_bytes > gpu_room(device):
                return Shortage(device.title, part, gpu_room(device))
        return None


def gpu_room(device: Device) -> int:
    """Return the bytes of a GPU's free memory that the plan may use."""
    return max(int(device.free_bytes * GPU_SHARE), device.free_bytes - MAX_LEFT_BYTES)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"


def spread(info: ModelInfo, buffers: BufferSizes, gpu_names: Seq[str]) -> tuple[InMain, Share, tuple[Share, ...]]:
    """Return the weights in main memory, all that is there, and what is on each GPU. Whether the file is mapped is
    decided here: a dry run maps nothing.
    """
    gpus = tuple(_part_of(one for one in buffers.buffers if one.is_on(name)) for name in gpu_names)
    rest = [one for one in buffers.buffers if not any(one.is_on(name) for name in gpu_names)]
    weights = [one for one in rest if one.kind == "model"]
    as_in_file = sum(one.size_bytes for one in weights if one.is_as_in_file)
    repacked = sum(one.size_bytes for one in weights) - as_in_file
    file_bytes = sum(tensor.n_bytes for tensor in info.loaded_tensors)
    gpu_bytes = sum(gpu.weights_bytes for gpu in gpus)
    # A tied embedding is on a GPU once more.
    gpu_bytes -= info.tied_bytes if gpu_bytes else 0
    in_main = InMain(
        as_in_file=as_in_file,
        repacked=repacked,
        left_in_file=max(0, file_bytes - gpu_bytes - as_in_file) if repacked else 0,
        can_be_mapped=info.alignment % MAPPED_ALIGNMENT == 0,
    )
    others = _part_of(one for one in rest if one.kind != "model")
    return in_main, others + Share(in_main.total_bytes), gpus


def _part_of(buffers: Iterable[Buffer]) -> Share:
    part = Share()
    for one in buffers:
        match one.kind:
            case "model":
                part += Share(weights_bytes=one.size_bytes)
            case "KV" | "RS":
                part += Share(kv_bytes=one.size_bytes)
            case _:
                part += Share(compute_bytes=one.size_bytes)
    return part
