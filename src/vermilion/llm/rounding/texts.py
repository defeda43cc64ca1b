"""The text that weights are rounded for where nobody gives one: Python's own language reference.

It comes with Python (`pydoc_data.topics`), so that nothing is downloaded or passed on. A text of
the kind that the model will read is better.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

from vermilion.errors import OptionError

_LEAST_CHARACTERS = 200  # of a topic: shorter ones are a line or two


def calibration_text() -> str:
    """Return the text.

    Raises: OptionError where this Python was installed without it.
    """
    if find_spec("pydoc_data") is None or find_spec("pydoc_data.topics") is None:
        raise OptionError(
            "this Python has no `pydoc_data.topics`, whose text is used where none is given",
            hint="`--calibration FILE`, a text of some thousand words",
        )
    from pydoc_data.topics import topics

    kept = [text for text in topics.values() if len(text) >= _LEAST_CHARACTERS]
    prose = re.sub(r"\n(?=[^\n])[ ]*(?=\S)", " ", "\n\n".join(kept))
    return re.sub(r"[ ]{2,}", " ", re.sub(r"\*{2,}|[=~\-]{4,}", " ", prose))
