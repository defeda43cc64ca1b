"""The proof finds faults that are put into the compiler on purpose: a few of each kind.

`python tools/mutate_proof.py` tries all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FEW = (
    "bias left out", "variance over one fewer", "LSTM forgets with the output gate",
    "zero point added to the sums", "requantization rounds down", "division of unsigned numbers",
    "mean over one more", "the NPU's outputs a hundredth larger",
)  # fmt: skip
FORMATS = ("fp32", "bf16", "int8", "exact", "provider")


def test_no_fault_is_missed(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    only = [word for name in FEW for word in ("--only", name)]
    formats = [
        word
        for name in ("fp32", "bf16", "int8", "exact", "provider")
        for word in ("--format", name)
    ]
    command = [sys.executable, str(ROOT / "tools" / "mutate_proof.py"), "--json", str(results)]
    ended = subprocess.run(
        [*command, *only, *formats, "--once"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(results.read_text(encoding="utf-8"))
    assert {row["outcome"] for row in found} == {"caught"}
    assert len(found) == len(FEW)


def test_every_fault_has_its_place() -> None:
    """A line that changed, or moved, would count as a fault that nobody put in."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from proof_float_faults import FAULTS as FLOAT_FAULTS
        from proof_integer_faults import FAULTS as INTEGER_FAULTS
        from proof_integer_faults import GPU_FAULTS, PROVIDER_FAULTS
    finally:
        sys.path.remove(str(ROOT / "tools"))
    faults = (*FLOAT_FAULTS, *INTEGER_FAULTS, *GPU_FAULTS, *PROVIDER_FAULTS)
    assert len(faults) > 100
    lost = [
        fault.name
        for fault in faults
        if (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) != 1
    ]
    assert not lost
