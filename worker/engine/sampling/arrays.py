"""The array types that the modules of sampling share. Any thread."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.intp]
"""Token ids, or positions in another array."""
Logits = NDArray[np.float32]
Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]

NO_IDS: Ids = np.empty(0, dtype=np.intp)
NO_IDS.flags.writeable = False
