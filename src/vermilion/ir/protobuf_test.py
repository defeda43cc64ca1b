from __future__ import annotations

import pytest

from hostile import field, sound_model
from vermilion.ir.protobuf import MAX_GRAPH_BYTES, WireError, graph_bytes

PADDING = field(6, bytes(1 << 20))  # the model's doc_string: makes a file too large to be harmless


def model(graph: bytes) -> bytes:
    return b"\x08\x08" + field(7, graph) + PADDING


def test_small_files_are_not_counted() -> None:
    assert graph_bytes(sound_model().SerializeToString()) == 0


def test_weights_do_not_count() -> None:
    few = graph_bytes(model(field(5, field(9, bytes(10)))))
    assert graph_bytes(model(field(5, field(9, bytes(10_000_000))))) == few > 0


@pytest.mark.parametrize(
    ("one", "least_bytes"),
    [
        (field(1, b""), 655),  # node
        (field(5, b""), 758),  # weight
        (field(13, field(1, b"name")), 326),  # value_info
        (field(1, field(5, b"")), 655 + 288),  # node with an attribute
        (field(1, field(5, field(6, b""))), 655 + 288 + 1785),  # with a body
    ],
)
def test_each_message_counts_for_what_it_takes(one: bytes, least_bytes: int) -> None:
    base = graph_bytes(model(b""))
    assert graph_bytes(model(one * 100)) - base >= 100 * least_bytes


def test_counting_stops_at_the_limit() -> None:
    assert MAX_GRAPH_BYTES < graph_bytes(model(field(1, b"") * 3_000_000)) < 2 * MAX_GRAPH_BYTES


@pytest.mark.parametrize("end", [b"\x3a\xff", b"\x3a\x05ab", b"\x08", b"\x08" + b"\xff" * 11])
def test_bytes_that_end_inside_a_field_are_refused(end: bytes) -> None:
    with pytest.raises(WireError):
        graph_bytes(PADDING + end)
