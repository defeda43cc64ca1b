"""Compiled calls as tables."""

from __future__ import annotations

import numpy as np
import pytest

from vermilion.codegen.table import ROW_WORDS, Address, Call, ObjectCode, table_of


@pytest.mark.parametrize(
    ("chunk", "threads", "taken"),
    [(0, 2, 32), (5, 2, 5), (-8, 2, 8), (-8, 16, 4), (-8, 500, 1)],  # of 256 units
)
def test_what_a_worker_takes_at_a_time(chunk: int, threads: int, taken: int) -> None:
    call = Call("f", (Address("arena", 64),), 256, chunk, False, "node", 0)
    table = table_of([ObjectCode(b"", ("f",))], 128, [call], {})
    row = table.rows({"f": 4096}, 0, threads).reshape(-1, ROW_WORDS)[0]
    assert np.array_equal(row, [4096, 0, 256, taken, 0])
