"""The tools for developers: measurements, checks of a GPU and of the container images. They are in no wheel and in no
image."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
