"""Where this user's cache lies: asked by whoever opens something, so nothing else is loaded."""

from __future__ import annotations

import os
from pathlib import Path


def default_root() -> Path:
    """Return the folder of this user's cache; the variable VERMILION_CACHE names another."""
    named = os.environ.get("VERMILION_CACHE")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("vermilion", appauthor=False))
