"""Where nodes really ran: everything that can be known of it, and a verdict.

Three columns, never one. *Supported* is a plan, *offloaded* another: both have said 100 % for
graphs of which nothing ran on the NPU (https://github.com/amd/RyzenAI-SW/issues/374). *Ran* is what
was seen: profile events, or hardware contexts that grew.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vermilion.backends.provider.contract import CPU
from vermilion.errors import ArtifactError

NPU = "VitisAIExecutionProvider"


@dataclass(frozen=True)
class Evidence:
    """What is known. None or empty where nobody told.

    `planned_*` and `report` are the provider's own words (summary; `vitisai_ep_report.json`, nodes
    by device), `assigned` is ONNX Runtime's, `events` are node runs by provider, `submitted` says
    how many commands our process put to the NPU (`xrt-smi`), `speedup` is the CPU's time ÷ ours.
    """

    operators: int
    planned_supported: int | None = None
    planned_offloaded: int | None = None
    report: Mapping[str, int] = field(default_factory=dict)
    providers: tuple[str, ...] = ()
    assigned: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    submitted: int | None = None
    speedup: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The three columns, None where unknown, and what does not fit together."""

    supported: int | None
    offloaded: int | None
    ran_on_npu: bool | None
    cpu_share: float | None  # of the node runs that were seen
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]


# A session of the same speed as the CPU's is the CPU's: ratios seen were 0.85 to 1.15
# (https://github.com/amd/RyzenAI-SW/issues/400).
_SAME_SPEED = (0.85, 1.15)


def judge(evidence: Evidence) -> Verdict:
    """Weigh what is known: what was seen counts, what was said is compared with it."""
    planned = evidence.planned_offloaded
    if planned is None and evidence.report:
        planned = sum(n for device, n in evidence.report.items() if device in ("NPU", "DPU"))
    ran = _ran(evidence)
    total = sum(evidence.events.values())
    cpu_share = evidence.events.get(CPU, 0) / total if total else None
    contradictions, notes = [], []
    if evidence.providers and NPU not in evidence.providers:
        contradictions.append(f"the session has no `{NPU}`: it has {', '.join(evidence.providers)}")
    if ran is False and planned:
        contradictions.append(
            f"the provider says that {planned} of {evidence.operators} operators are on the NPU,"
            f" and {_seen(evidence)}"
        )
    if ran is False and not planned and NPU in evidence.providers:
        contradictions.append(f"the session lists `{NPU}`, and {_seen(evidence)}")
    if planned and evidence.planned_supported == 0:
        contradictions.append(
            f"the preliminary summary supports no operator, the final one offloads {planned}"
        )
    assigned = evidence.assigned.get(NPU)
    if assigned == 0 and planned:
        contradictions.append("ONNX Runtime assigned no node to the provider")
    if evidence.speedup is not None and ran is not True:
        low, high = _SAME_SPEED
        if low <= evidence.speedup <= high:
            notes.append(f"it is as fast as the CPU ({evidence.speedup:.2f}×): it may be the CPU")
    if ran is None:
        notes.append("nothing was seen to run on the NPU, and nothing else: no profile, no xrt-smi")
    return Verdict(
        supported=evidence.planned_supported,
        offloaded=planned,
        ran_on_npu=ran,
        cpu_share=cpu_share,
        contradictions=tuple(contradictions),
        notes=tuple(notes),
    )


def _ran(evidence: Evidence) -> bool | None:
    if evidence.submitted:
        return True
    if evidence.events:
        return evidence.events.get(NPU, 0) > 0
    if evidence.submitted == 0:
        return False
    if evidence.providers and NPU not in evidence.providers:
        return False
    return None


def _seen(evidence: Evidence) -> str:
    if evidence.events:
        on_cpu = evidence.events.get(CPU, 0)
        return f"every node that was seen to run ran on the CPU ({on_cpu} events)"
    return "not one command was put to the NPU"


def read_ep_report(text: str) -> dict[str, int]:
    """Return the nodes by device from `vitisai_ep_report.json`; `all` is left out.

    Source: Ryzen AI documentation, modelrun.rst, "Operator Assignment Report"; the device is called
    `DPU` up to 1.3 and `NPU` since. Raises: ArtifactError.
    """
    try:
        rows = json.loads(text)["deviceStat"]
        counts = {str(row["name"]): int(row["nodeNum"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            "this is no `vitisai_ep_report.json`", hint="it may be cut off: compile again"
        ) from error
    return {name: count for name, count in counts.items() if name != "all"}


_COUNTED = re.compile(r"Number of operators (supported|offloaded) by VAIML:\s*(\d{1,9})\b")


def read_summary_counts(text: str) -> dict[str, int]:
    """Return `supported` and `offloaded` operators from a summary, as far as it has them."""
    return {match[1]: int(match[2]) for match in _COUNTED.finditer(text)}


_LINE = re.compile(r"No\. of (Operators|Subgraphs) :((?:\s+[A-Za-z_ ]+?\s+\d{1,9})+)\s*$")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z_ ]*?)\s+(\d{1,9})")


def read_console(log: str) -> dict[str, dict[str, int]]:
    """Return the counts that the provider prints: `operators` and `subgraphs`, by device.

    Two forms: `[Vitis AI EP] No. of Operators : CPU 8 NPU 2356`, with `Actually running on NPU 2`
    beside the subgraphs, and `INFO: [VAIP-VAIML-PASS] No. of Operators : VAIML 49`.
    """
    found: dict[str, dict[str, int]] = {}
    for line in log.splitlines():
        match = _LINE.search(line)
        if match:
            pairs = {name.strip(): int(n) for name, n in _PAIR.findall(match[2])}
            found.setdefault(match[1].lower(), {}).update(pairs)
    return found


_CONTEXT = re.compile(
    r"^\s*\|\s*(\d{1,9})\s*\|[^|\n]*\|[^|\n]*\|\s*(\d{1,12})\s*\|\s*\d{1,12}\s*\|", re.MULTILINE
)


def read_partitions(text: str) -> dict[int, int]:
    """Return the commands submitted by process from `xrt-smi examine --report aie-partitions`.

    The table's columns are PID, context, status, submitted, completed, and more; a process may
    have several contexts. Source: Ryzen AI documentation, xrt_smi.rst.
    """
    counts: Counter[int] = Counter()
    for match in _CONTEXT.finditer(text):
        counts[int(match[1])] += int(match[2])
    return dict(counts)


# Source: Ryzen AI documentation, xrt_smi.rst (Windows), linux.rst (`/opt/xilinx/xrt/setup.sh`).
_PLACES = ("C:/Windows/System32/AMD/xrt-smi.exe", "/opt/xilinx/xrt/bin/xrt-smi")
_LIMIT_S = 10.0


def find_xrt_smi(places: Sequence[str] = _PLACES) -> str:
    """Return the tool's path, empty where there is none."""
    found = shutil.which("xrt-smi")
    if found:
        return found
    return next((place for place in places if Path(place).is_file()), "")


def submitted_commands(process: int, tool: str | None = None) -> int | None:
    """Return how many commands a process has put to the NPU; None where nobody can tell."""
    program = find_xrt_smi() if tool is None else tool
    if not program:
        return None
    try:
        done = subprocess.run(
            [program, "examine", "--report", "aie-partitions"],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_partitions(done.stdout).get(process, 0) if done.returncode == 0 else None
