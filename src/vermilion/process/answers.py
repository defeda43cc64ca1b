"""What a worker's process writes to its parent, which believes none of it unread.

The process may have been broken by what ran in it: lines may be no JSON, have no end, come
unasked, or in floods.
"""

from __future__ import annotations

import json
import queue
from typing import IO, Any, Final, Literal

from vermilion.process.worker import Message

BROKEN: Final = "broken"
"""What stands for an answer that nobody can read; none follows it."""

Answer = Message | Literal["broken"] | None  # None: there will be no more
Answers = queue.SimpleQueue[Answer]

_MOST_LINE_BYTES = 64 << 20  # texts of a literal run lie in its answer
_MOST_NOISE_BYTES = 1 << 20
_MOST_WAITING = 1024
# What every answer begins with (`worker.main`).
_BEGINNING = b'{"number"'


def read_answers(stream: IO[bytes], answers: Answers) -> None:
    """Put the answers into the queue, in a thread of its own.

    What libraries print before the worker could move its stdout is no answer.
    """
    noise_bytes, has_answered = 0, False
    with stream:
        while line := stream.readline(_MOST_LINE_BYTES):
            answer = parsed(line) if line.endswith(b"\n") else None
            if answer is None and not has_answered and not line.startswith(_BEGINNING):
                noise_bytes += len(line)
                if noise_bytes <= _MOST_NOISE_BYTES:
                    continue
            if answer is None or answers.qsize() >= _MOST_WAITING:
                answers.put(BROKEN)
                return
            has_answered = True
            answers.put(answer)
    answers.put(None)


def parsed(line: bytes) -> Message | None:
    """Return the answer in a line; None where it is none."""
    if not line.startswith(b"{"):  # most of what is none, in floods too
        return None
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    is_done = isinstance(answer.get("ok"), dict)
    return answer if is_done or _is_error(answer.get("error")) else None


def _is_error(described: Any) -> bool:
    return (
        isinstance(described, dict)
        and isinstance(described.get("kinds"), list)
        and all(isinstance(kind, str) for kind in described["kinds"])
        and all(isinstance(described.get(key), str) for key in ("message", "where", "hint"))
    )
