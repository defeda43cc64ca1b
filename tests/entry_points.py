"""What an installation says of this package to others, for a checkout that is not installed.

Another checkout may be, or an older state of this one: what stands first on the path counts.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def announced(folder: Path) -> Path:
    """Write the entry points of `pyproject.toml` as a wheel has them; return a folder for the path.

    Source: the "Entry points specification" of the Python Packaging User Guide.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    place = folder / "vermilion-0.dist-info"
    place.mkdir()
    lines = [
        line
        for group, names in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {home}" for name, home in names.items()))
    ]
    (place / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: vermilion\nVersion: 0\n")
    return folder
