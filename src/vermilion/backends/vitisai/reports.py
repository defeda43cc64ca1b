"""What the provider says of its own placement: report file, console, summaries.

All of it was written by a process that is not trusted: files may be links or pipes, long or no
text, numbers may be none. What cannot be read says nothing.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vermilion.errors import ArtifactError

REPORT_FILE = "vitisai_ep_report.json"
# Sorted, `final` before `preliminary`. The preliminary one was right where the others were a plan.
SUMMARIES = ("final-vaiml-pass-summary.txt", "preliminary-vaiml-pass-summary.txt")
_MOST_BYTES = 64 << 20  # of a report; one of a thousand operators has less than a megabyte
_MOST_NODES = 10**9

# `IPU` up to 1.1, `DPU` up to 1.3, `NPU` since; `VAIML` where BF16 is compiled.
NPU_DEVICES = frozenset(("NPU", "DPU", "IPU", "VAIML"))
_RUNNING = "actually running on"


@dataclass(frozen=True)
class DeviceCounts:
    """Operators by device, as the provider counts them.

    `total` is what it says that there are; `elsewhere` has the outputs of nodes that it names and
    that are not on the NPU, with the device; `regions` and `running` are regions made for the NPU
    and those that run there, None where it does not say.
    """

    devices: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    regions: int | None = None
    running: int | None = None

    @property
    def on_npu(self) -> int:
        """Operators on the NPU."""
        return sum(n for device, n in self.devices.items() if device in NPU_DEVICES)

    @property
    def left(self) -> int:
        """Operators that are not on the NPU: on any processor, or in the total alone."""
        named = sum(self.devices.values()) - self.on_npu
        return max(named, self.total - self.on_npu, len(self.elsewhere))


def read_ep_report(text: str) -> DeviceCounts:
    """Read `vitisai_ep_report.json`.

    Source: Ryzen AI documentation, modelrun.rst, "Operator Assignment Report"; rows of nodes and
    subgraphs: vaip, stat.cpp. Raises: ArtifactError.
    """
    try:
        data = json.loads(text)
        rows = data["deviceStat"]
        counts: dict[str, int] = {}
        for row in rows:
            name = str(row["name"])
            counts[name] = counts.get(name, 0) + _count(row["nodeNum"])
        elsewhere = dict(_nodes_elsewhere(data.get("nodeStat", [])))
        regions = {str(r["device"]): _count(r["count"]) for r in data.get("subgraphStat", [])}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"this is no `{REPORT_FILE}`", hint="it may be cut off: compile again"
        ) from error
    total = counts.pop("all", 0)
    return DeviceCounts(counts, total, elsewhere, *_regions(regions))


def _nodes_elsewhere(rows: object) -> Iterator[tuple[str, str]]:
    if not isinstance(rows, list):
        raise TypeError("nodeStat is no list")
    for row in rows:
        if str(row["device"]) not in NPU_DEVICES:
            yield from ((str(name), str(row["device"])) for name in row["output"])


def _regions(counts: Mapping[str, int]) -> tuple[int | None, int | None]:
    made = [n for device, n in counts.items() if device in NPU_DEVICES]
    running = [n for device, n in counts.items() if device.lower().startswith(_RUNNING)]
    return (sum(made) if made else None, min(running) if running else None)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_NODES:
        raise ValueError(f"`{str(value)[:80]}` is no count")
    return value


@dataclass(frozen=True)
class SummaryCounts:
    """Operators as the compiler's summaries count them, None where they do not say."""

    operators: int | None = None
    supported: int | None = None
    offloaded: int | None = None


_COUNTED = re.compile(
    r"Number of operators (?:in the (model)|(supported|offloaded) by VAIML):\s*(\d{1,9})\b"
)


def read_summary_counts(text: str) -> SummaryCounts:
    """Return what a summary says, as far as it does."""
    found = {match[1] or match[2]: int(match[3]) for match in _COUNTED.finditer(text)}
    return SummaryCounts(found.get("model"), found.get("supported"), found.get("offloaded"))


_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[ -/]?[@-~]")
# ONNX Runtime's `…[I:onnxruntime:, stat.cpp:198 stat.cpp] ` and glog's `I20250714 14:46:51 … ] `
_PREFIX = re.compile(
    r"^(?:[^\[\n]{0,60}\[[VIWEF]:onnxruntime:[^\]]{0,200}\]|[IWEF]\d{8} [^\]]{0,200}\])"
)
_PAIR = r"([A-Za-z_][A-Za-z_ ]*?)\s+(\d{1,9})(?:\s+\d{1,3}(?:\.\d{1,6})?%)?"
_PAIRS = re.compile(rf"\s*(?:{_PAIR}\s*)*")
_HEAD = re.compile(r"No\. of (Operators|Subgraphs)\s*:")
_LONGEST_LINE = 2000


def read_console(log: str) -> DeviceCounts:
    """Return the counts that the provider prints, empty where it prints none.

    On one line, `[Vitis AI EP] No. of Operators : CPU 8 NPU 2356`; at INFO of ONNX Runtime's log a
    head and then a line a device, each behind the log's prefix (Ryzen AI documentation, inst.rst).
    Where it prints several times, the worst counts: any operator's name may be printed, too.
    """
    operators: list[dict[str, int]] = []
    regions: list[dict[str, int]] = []
    section: dict[str, int] | None = None
    for line in log.splitlines():
        text = _PREFIX.sub("", _ESCAPES.sub("", line[:_LONGEST_LINE])).strip()
        head = _HEAD.search(text)
        if head is not None:
            section = {}
            (operators if head[1] == "Operators" else regions).append(section)
            text = text[head.end() :]
        elif section is None:
            continue
        if not _PAIRS.fullmatch(text):
            section = None
            continue
        section |= {name.strip(): int(n) for name, n in re.findall(_PAIR, text)}
    worst = max((DeviceCounts(one) for one in operators), key=_badness, default=DeviceCounts())
    found = [_regions(one) for one in regions]
    running = [count for _, count in found if count is not None]
    made = [count for count, _ in found if count is not None]
    return replace(
        worst,
        regions=min(made) if made else None,
        running=min(running) if running else None,
    )


def _badness(counts: DeviceCounts) -> tuple[int, int]:
    return counts.left, -counts.on_npu


def read_plain_file(path: Path) -> str | None:
    """Return the text of a plain file of sensible size; None for a link, a pipe, or none."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with os.fdopen(os.open(path, flags), "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError:
        return None
    return None if len(data) > _MOST_BYTES else data.decode("utf-8", "replace")
