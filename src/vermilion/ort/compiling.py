"""Compiling a model for a session, once, by whichever process is first."""

from __future__ import annotations

from pathlib import Path

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ort.asked import Asked
from vermilion.ort.source import Source, look_up, note_key, refuse
from vermilion.runtime.cache import Cache


def compiled(source: Source, asked: Asked) -> Path:
    """Return the bundle of a model, compiled or found; `look_up` finds it from now on.

    Processes that want the same model wait before they have loaded anything large.
    Raises: what compiling raises; what is no accident is kept, and raised again at once.
    """
    with Cache().store.locked(f"model-{note_key(source, asked)[:32]}"):
        known = look_up(source, asked)
        if known.refused:
            raise UnsupportedError(known.refused, where=source.label)
        if known.artifact is not None:
            return known.artifact
        from vermilion.api import compile_model

        try:
            artifact = compile_model(source.model, dims=known.sizes).artifact
        except (ModelError, UnsupportedError) as error:
            refuse(source, asked, known, error.message)
            raise
        look_up(source, asked)  # and keep a note of it
    return artifact
