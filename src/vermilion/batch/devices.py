"""The devices of a job: what the user names, what is here, and each one's share of the cores."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vermilion.cores import allowed_cores, usable_cores
from vermilion.errors import DeviceError, OptionError, Refusal

if TYPE_CHECKING:
    from vermilion.backends.base import Backend
    from vermilion.runtime.manifest import Manifest

Kind = Literal["cpu", "gpu", "npu"]
KINDS: tuple[Kind, ...] = ("cpu", "gpu", "npu")
ALL = "all"

_CACHES = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class BatchDevice:
    """One process's place. `cores` are those that it may use; empty: any."""

    name: str
    kind: Kind
    index: int
    cores: tuple[int, ...]
    threads: int


def parse_devices(text: str, kind: Kind) -> tuple[BatchDevice, ...]:
    """Read `all`, or `cpu:0,cpu:1`; the cores of this process are shared out among them.

    `all` is every GPU or NPU for a program that runs there, and for one of the CPU a device for
    each group of cores that share a last-level cache.

    Raises: OptionError for a word that is no device, or one that the program cannot run on;
    DeviceError where a GPU is not here.
    """
    found = _all(kind) if text == ALL else [_parse(word, kind) for word in text.split(",")]
    if len(set(found)) < len(found):
        raise OptionError(
            f"a device stands in `{text}` twice",
            where="--devices",
            hint="number them: `cpu:0,cpu:1` are two processes, each with half of the cores",
        )
    groups = shared_out(allowed_cores(), len(found))
    # A cgroup's quota is for all of them together.
    most = max(1, usable_cores() // len(found))
    return tuple(
        BatchDevice(f"{kind}:{index}", kind, index, cores, max(1, min(len(cores), most)))
        for index, cores in zip(found, groups, strict=True)
    )


def with_threads(devices: Iterable[BatchDevice], threads: int) -> tuple[BatchDevice, ...]:
    """Return the devices with so many threads each; 0: as they are."""
    return tuple(replace(one, threads=threads or one.threads) for one in devices)


def shared_out(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return each of `count` an equal run of the cores; none, where there are more than cores."""
    if count > len(cores):
        return [()] * count
    bounds = [len(cores) * at // count for at in range(count + 1)]
    return [tuple(cores[a:b]) for a, b in pairwise(bounds)]


def backends_on(manifest: Manifest, device: int) -> Mapping[str, Backend] | None:
    """Return the backends for a session on one of several GPUs; None: as the bundle says.

    IREE's takes the first GPU that fits: here it is shown no other than the one meant.
    """
    names = {part.backend for part in manifest.parts}
    if "iree" not in names or device == 0:
        return None
    from vermilion.backends import backend
    from vermilion.backends.iree.backend import IreeBackend
    from vermilion.backends.iree.found import Device, find_devices

    def one() -> tuple[Device, ...] | Refusal:
        found = find_devices()
        return found if isinstance(found, Refusal) else found[device : device + 1]

    return {name: IreeBackend(find=one) if name == "iree" else backend(name) for name in names}


def _parse(word: str, kind: Kind) -> int:
    name, colon, number = word.strip().partition(":")
    if name not in KINDS or (colon and not (number.isascii() and number.isdigit())):
        raise OptionError(
            f"`{word}` is no device",
            where="--devices",
            hint="write `all`, `cpu`, or with numbers `cpu:0,cpu:1` or `gpu:0,gpu:1`",
        )
    if name != kind:
        raise OptionError(
            f"the program is for a {kind.upper()} and `{word}` is none",
            where="--devices",
            hint=f"write `{kind}:0`, or compile for another `--target`",
        )
    index = int(number) if colon else 0
    if kind == "gpu" and index >= _gpus():
        raise DeviceError(
            f"there is no `{word}`: this machine has {_gpus()} GPUs that can be used",
            where="--devices",
            hint="`vermilion doctor` says what is missing",
        )
    return index


def _all(kind: Kind) -> list[int]:
    if kind == "cpu":
        return list(range(_cache_groups(allowed_cores())))
    return list(range(max(1, _gpus()))) if kind == "gpu" else [0]


def _gpus() -> int:
    from vermilion.backends.iree.found import find_devices

    found = find_devices()
    return 0 if isinstance(found, Refusal) else len(found)


def _cache_groups(cores: Sequence[int]) -> int:
    """Return the number of last-level caches that these cores use; 1 where the system is silent."""
    if not sys.platform.startswith("linux"):
        return 1
    groups = set()
    for core in cores:
        listed = sorted((_CACHES / f"cpu{core}" / "cache").glob("index*/shared_cpu_list"))
        if listed:
            groups.add(listed[-1].read_text(encoding="ascii").strip())
    return max(1, len(groups))
