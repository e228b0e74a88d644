"""The meaning of the values of --tensor-split and --gpu-layers. Pure."""

SHARES_PATTERN = r"[0-9]{1,6}(\.[0-9]{1,6})?(,[0-9]{1,6}(\.[0-9]{1,6})?){0,63}"


def shares(text: str | None) -> tuple[float, ...]:
    """`3,1` as numbers; empty for none."""
    return tuple(map(float, text.split(","))) if text else ()


def wants_layers(gpu_layers: str) -> bool:
    """True if --gpu-layers asks for layers on a GPU, so that there must be one."""
    return gpu_layers == "all" or (gpu_layers.isdecimal() and int(gpu_layers) > 0)


def wants_no_layers(gpu_layers: str) -> bool:
    """True if --gpu-layers says that no layer may be on a GPU."""
    return gpu_layers.isdecimal() and int(gpu_layers) == 0
