"""The facts around the hardware that `doctor` judges: variables, packages, rights, limits."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

# Only these are read, so that no report carries a user's secrets.
VARIABLE_PREFIXES = ("XLNX_", "ORT_MIGRAPHX_")
VARIABLE_NAMES = frozenset(
    (
        "AMDGPU_EP_PATH",
        "CONDA_PREFIX",
        "HSA_OVERRIDE_GFX_VERSION",
        "LD_LIBRARY_PATH",
        "RYZENAI_EP_PATH",
        "RYZEN_AI_INSTALLATION_PATH",
        "VIRTUAL_ENV",
        "XILINX_XRT",
    )
)

_PATH_VARIABLES = ("AMDGPU_EP_PATH", "RYZENAI_EP_PATH", "RYZEN_AI_INSTALLATION_PATH", "XILINX_XRT")

DISTRIBUTION_PREFIXES = ("onnxruntime", "migraphx", "rocm", "voe", "model-generate", "amd-quark")

MODULES = ("amdgpu", "amdxdna")

# Shared libraries that AMD's providers need and their wheels do not bring.
LIBRARIES = ("libamdhip64.so.7", "libmigraphx_c.so.3", "libxrt_coreutil.so.2")

_LIBRARY_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/opt/rocm/lib",
    "/opt/xilinx/xrt/lib",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
)


@dataclass(frozen=True)
class Environment:
    """What surrounds the hardware. Defaults describe a machine where nothing is set or known.

    `devices`: whether this user may read and write each device node that exists. `modules`: those
    of AMD's kernel modules that are loaded. `memlock_bytes`: None is unlimited, or unknown to the
    system. `paths`: whether the folder or file that a variable names exists, by the variable.
    """

    system: str = "Linux"
    system_version: str = ""
    user: str = ""
    python_prefix: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, bool] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, bool] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    memlock_bytes: int | None = None
    missing_libraries: frozenset[str] = frozenset()
    cache_folder: str = ""
    cache_free_bytes: int = 0


def collect_environment(
    cache_folder: Path,
    *,
    variables: Mapping[str, str] | None = None,
    sysfs_root: Path = Path("/sys"),
    device_root: Path = Path("/dev"),
) -> Environment:
    """Look at what surrounds this machine's hardware.

    `cache_folder` is where compiled models go; it need not exist yet.
    """
    kept = _kept_variables(os.environ if variables is None else variables)
    on_windows = sys.platform == "win32"
    return Environment(
        system=platform.system(),
        system_version=platform.version() if on_windows else platform.release(),
        user=_user(),
        python_prefix=sys.prefix,
        variables=kept,
        paths={name: Path(kept[name]).exists() for name in _PATH_VARIABLES if kept.get(name)},
        distributions=_distributions(),
        devices=_device_access(device_root),
        modules=_modules(sysfs_root),
        memlock_bytes=_memlock_bytes(),
        missing_libraries=frozenset() if on_windows else missing_libraries(LIBRARIES, kept),
        cache_folder=str(cache_folder),
        cache_free_bytes=_free_bytes(cache_folder),
    )


def missing_libraries(
    names: Iterable[str],
    variables: Mapping[str, str],
    *,
    folders: Iterable[str] = _LIBRARY_FOLDERS,
    loader_cache: Path = Path("/etc/ld.so.cache"),
) -> frozenset[str]:
    """Return those of `names` that the dynamic loader would not find; nothing is loaded."""
    searched = [Path(part) for part in variables.get("LD_LIBRARY_PATH", "").split(":") if part]
    searched += [Path(folder) for folder in folders]
    # The cache is a binary file, but the names stand in it as they are.
    cached = loader_cache.read_bytes() if loader_cache.is_file() else b""
    return frozenset(
        name
        for name in names
        if f"{name}\0".encode() not in cached
        and not any((folder / name).is_file() for folder in searched)
    )


def _kept_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in VARIABLE_NAMES or name.startswith(VARIABLE_PREFIXES)
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id often has no name
        return ""


def _distributions() -> dict[str, str]:
    named = ((d.metadata["Name"] or "", d.version) for d in metadata.distributions())
    spelled = ((name.lower().replace("_", "-"), version) for name, version in named)
    return {name: version for name, version in spelled if name.startswith(DISTRIBUTION_PREFIXES)}


def _device_access(device_root: Path) -> dict[str, bool]:
    patterns = ("kfd", "accel/accel*", "dri/renderD*")
    nodes = (node for pattern in patterns for node in sorted(device_root.glob(pattern)))
    return {node.as_posix(): os.access(node, os.R_OK | os.W_OK) for node in nodes}


def _modules(sysfs_root: Path) -> frozenset[str]:
    return frozenset(name for name in MODULES if (sysfs_root / "module" / name).is_dir())


def _free_bytes(folder: Path) -> int:
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    return shutil.disk_usage(existing).free if existing is not None else 0


if sys.platform == "win32":

    def _memlock_bytes() -> int | None:
        return None

else:
    import resource

    def _memlock_bytes() -> int | None:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return None if soft == resource.RLIM_INFINITY else soft
