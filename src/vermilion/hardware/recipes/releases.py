"""Which release of ONNX Runtime goes with which release of ROCm, and what it needs to build.

Sources: AMD's wheels (repo.radeon.com/rocm/manylinux, from 7.14 on rocm.frameworks.amd.com) for the
pairs from 6.4 on, ONNX Runtime's page of the ROCm provider before; microsoft/onnxruntime, pull
request 25181, for the end of that provider; cmake/CMakeLists.txt of each release for the tools.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.errors import OptionError
from vermilion.version import is_older, version_fields


@dataclass(frozen=True)
class Release:
    """A release of ROCm: ONNX Runtime's tag for it, the providers that can be built, the tools."""

    rocm: str
    tag: str
    providers: tuple[str, ...]
    cmake: str
    gcc: str
    python: str


_BOTH = ("migraphx", "rocm")

# The newest first. A release between two rows takes the older of them.
RELEASES = (
    Release("10.1", "v1.29.0", ("migraphx",), "3.28", "11.1", "3.12"),
    Release("7.2", "v1.23.2", ("migraphx",), "3.28", "11.1", "3.10"),
    Release("7.1", "v1.23.1", ("migraphx",), "3.28", "11.1", "3.10"),
    Release("7.0", "v1.22.1", _BOTH, "3.28", "11.1", "3.10"),
    Release("6.4", "v1.21.0", _BOTH, "3.28", "11.1", "3.10"),
    Release("6.2", "v1.20.1", _BOTH, "3.26", "11.1", "3.10"),
    Release("5.7", "v1.17.3", _BOTH, "3.26", "9.0", "3.8"),
)


def find_release(rocm: str) -> Release:
    """Return the row for a release of ROCm.

    Raises: OptionError for what is no release, or one before the first row.
    """
    if not version_fields(rocm):
        raise OptionError(
            f"`--rocm {rocm}` is no release of ROCm",
            hint="write it as `7.0`; `cat /opt/rocm/.info/version` says which is installed",
        )
    for release in RELEASES:
        if not is_older(rocm, release.rocm):
            return release
    raise OptionError(
        f"there is no recipe for ROCm {rocm}", hint=f"the oldest is {RELEASES[-1].rocm}"
    )
