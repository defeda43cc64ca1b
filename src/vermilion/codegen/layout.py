"""Where the native driver and its caller keep what they share."""

from __future__ import annotations

# One cache line each: the generation, and whether the workers are to end; then what each worker has
# finished; then, for each step, a counter for each worker's share.
CONTEXT_LINE_BYTES = 64
CLOSING = 8
GENERATION, FINISHED = (line * CONTEXT_LINE_BYTES for line in range(2))
ROW_WORDS = 5

RUN, WAIT, SERVE = "vermilion_run", "vermilion_wait", "vermilion_serve"
DRIVER = (RUN, WAIT, SERVE)


def context_bytes(steps: int, workers: int) -> int:
    """Return the size of what the workers of one program share."""
    return FINISHED + (1 + steps) * workers * CONTEXT_LINE_BYTES
