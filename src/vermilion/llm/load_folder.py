"""A process of its own: opens an OGA folder on the CPU, to find one that will not load.

`python -m vermilion.llm.load_folder FOLDER`
"""

from __future__ import annotations

import sys
from pathlib import Path

from vermilion.llm.open_decoder import EngineOptions
from vermilion.llm.stock_engine import open_folder

if __name__ == "__main__":
    open_folder(Path(sys.argv[1]), EngineOptions(threads=1, on_cpu=True))
