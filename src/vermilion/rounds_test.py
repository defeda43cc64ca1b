from __future__ import annotations

from vermilion.rounds import in_rounds


def test_every_engine_has_one_turn_a_round_and_none_is_always_first() -> None:
    asked: list[str] = []
    in_rounds("abc", lambda name, _: asked.append(name), 6)
    rounds = ["".join(asked[at : at + 3]) for at in range(0, 18, 3)]
    assert rounds == ["abc", "cba", "bca", "acb", "cab", "bac"]


def test_rounds_to_warm_up_are_left_out() -> None:
    told: list[tuple[int, int]] = []
    found = in_rounds(
        ["a", "b"], lambda name, number: f"{name}{number}", 2, warm_up=1,
        progress=lambda _, done, total: told.append((done, total)),
    )  # fmt: skip
    assert found == [["a1", "a2"], ["b1", "b2"]]
    assert told == [(1, 3), (2, 3), (3, 3)]
