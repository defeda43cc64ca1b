from __future__ import annotations

from vermilion.quantize.sensitivity import Damage, widened_for


def test_what_is_raised_removes_most_for_least() -> None:
    rows = [
        Damage("activation", ("a",), 8.0, 1000),
        Damage("activation", ("b",), 4.0, 10),
        Damage("weight", ("n",), 2.0, 1000),
        Damage("activation", ("c",), 1.0, 100_000),
    ]
    assert widened_for(rows, 15.0, True) == ((), ())
    assert widened_for(rows, 11.0, True) == (("b",), ())
    assert widened_for(rows, 3.0, True) == (("b", "a"), ())
    assert widened_for(rows, 1.0, True) == (("b", "a"), ("n",))
    assert widened_for(rows, 1.0, False) == ((), ("n",))


def test_several_small_ones_may_cost_less_than_one_large() -> None:
    large = Damage("activation", ("large",), 9.0, 100_000)
    small = [Damage("activation", (f"small {i}",), 0.01, 1000) for i in range(3)]
    rows = [large, *small]
    assert widened_for(rows, 9.01, True) == (("small 0", "small 1"), ())
    assert widened_for(rows, 8.0, True) == (("large",), ())
