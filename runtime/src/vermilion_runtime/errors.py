"""The errors of the C library, by its codes."""

from __future__ import annotations


class VermilionError(Exception):
    """What is wrong, where, and what to do about it."""

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message, self.where, self.hint = message, where, hint
        place = f" ({where})" if where else ""
        super().__init__(f"{message}{place}" + (f"\nhint: {hint}" if hint else ""))


class ArtifactError(VermilionError):
    """The compiled model is damaged, foreign, or of another version."""


class OptionError(VermilionError):
    """The request makes no sense as written."""


class UnsupportedError(VermilionError):
    """The model needs more than this package does."""


class DeviceError(VermilionError):
    """This processor, or this system, does not run the model."""


class OtherSizesError(UnsupportedError):
    """The code is not right at the sizes of this run."""


class TrustError(VermilionError):
    """Nobody whom this user trusts answers for the machine code."""


class DataError(VermilionError):
    """A number in an input is wrong: an index, a divisor of 0."""


# The numbers are those of `enum vermilion_code` in `vermilion.h`; 7, no memory, is `MemoryError`.
BY_CODE: dict[int, type[VermilionError]] = {
    1: ArtifactError,
    2: OptionError,
    3: UnsupportedError,
    4: DeviceError,
    5: OtherSizesError,
    6: TrustError,
    8: DataError,
}
NO_MEMORY = 7
