"""Where the native driver and its caller keep what they share."""

from __future__ import annotations

CONTEXT_LINE_BYTES = 64
GENERATION, FINISHED, COUNTERS = (line * CONTEXT_LINE_BYTES for line in range(3))
ROW_WORDS = 5

RUN, WAIT = "vermilion_run", "vermilion_wait"
