"""Activations of a made model of two layers, and what a reference says of them: small, seeded, without a network."""

import numpy as np

from parity.levels.checkpoints import N_RUNS, Computed, Expected
from parity.points import NAMES, ONCE, Activations, Name, Point

N_LAYERS, N_TOKENS, N_HEADS, N_VOCAB = 2, 4, 2, 12
TOKENS = (3, 1, 4, 1)
CONTINUATION = (5, 9, 2)

FEATURES: dict[Name, int] = {
    "k_proj": 4,
    "v_proj": 4,
    "k_rope": 4,
    "k_cache": 4,
    "v_cache": 4,
    "swiglu": 16,
    "logits": N_VOCAB,
}
"""The lengths of rows at points that have not eight values."""

STORED: dict[Name, Name] = {"k_cache": "k_rope", "v_cache": "v_proj"}


def layer_points(n_layers: int) -> list[Point]:
    """All points of a model in the order of computation."""
    inner = [name for name in NAMES if name not in ONCE]
    return [
        Point.of("embedding", -1),
        *(Point.of(name, layer) for layer in range(n_layers) for name in inner),
        Point.of("final_norm", n_layers),
        Point.of("logits", n_layers),
    ]


def made_activations(seed: int = 1) -> Activations:
    """Every point, float64 of magnitude 1; the caches hold what was to be stored."""
    chance = np.random.default_rng(seed)
    found: Activations = {}
    for point in layer_points(N_LAYERS):
        shape = (N_TOKENS, FEATURES.get(point.name, 8))
        shape_of_heads = (N_HEADS, N_TOKENS, N_TOKENS)
        found[point] = chance.normal(size=shape_of_heads if point.name in ("scores", "probs") else shape)
    for layer in range(N_LAYERS):
        for cache, computed in STORED.items():
            found[Point.of(cache, layer)] = found[Point.of(computed, layer)]
    return found


def expected() -> Expected:
    """Its continuation is decided by two nats."""
    rows = np.zeros((len(CONTINUATION), N_VOCAB))
    rows[np.arange(len(CONTINUATION)), CONTINUATION] = 2.0
    return Expected.of(TOKENS, made_activations(), CONTINUATION, rows)


def found() -> Computed:
    """The values of a library that computes in float32 and does nothing wrong."""
    activations = {point: values.astype(np.float32) for point, values in made_activations().items()}
    logits = activations[Point.of("logits", N_LAYERS)].copy()
    return Computed(activations, logits, (CONTINUATION,) * N_RUNS)


def all_points() -> list[Point]:
    assert {point.name for point in layer_points(N_LAYERS)} == set(NAMES)
    return layer_points(N_LAYERS)
