"""The weight of a row of logits by ggml's own softmax kernel, which takes a third to half of numpy's time for it.

Owns that one function of the library. Any thread.
"""

import ctypes

from worker.llama.library import library_function
from worker.sampling.arrays import Logits
from worker.sampling.estimate import Estimate, numpy_estimate, scaled


def fastest_estimate() -> Estimate:
    """ggml's way where the CPU backend is linked in. Where it is a module, numpy's: a module shows no kernels.

    Source: ggml_vec_soft_max_f32 (ggml/src/ggml-cpu/vec.h): y[i] = expf(x[i] - max), and the sum in float64. Its vector
    exp is off by 2 units in the last place.
    """
    try:
        soft_max = library_function(
            "ggml_vec_soft_max_f32",
            ctypes.c_double,
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float),
        )
    except AttributeError:
        return numpy_estimate

    def estimate(logits: Logits, shift: float, temperature: float) -> float:
        weights = scaled(logits, shift, 1.0 / temperature)
        address = weights.ctypes.data
        total: float = soft_max(len(weights), address, address, 0.0)
        return total

    return estimate
