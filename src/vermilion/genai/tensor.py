"""Numbers of any shape, as a batch of prompts is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Tensor:
    """An array. `numpy.asarray` takes it, too."""

    def __init__(self, values: ArrayLike) -> None:
        self._values = np.array(values)

    def as_numpy(self) -> NDArray[Any]:
        """Return the numbers."""
        return self._values

    def shape(self) -> list[int]:
        """Return the sizes."""
        return list(self._values.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._values, dtype=dtype, copy=bool(copy) or dtype is not None)
