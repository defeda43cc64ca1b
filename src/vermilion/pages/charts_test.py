from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from vermilion.pages.charts import Bar, Column, Series, bar_chart, column_chart, histogram, ticks


@pytest.mark.parametrize(
    ("high", "last"),
    [(1.0, 1.0), (0.93, 1.0), (47.0, 50.0), (101.0, 150.0), (3e6, 3e6), (0.0, 1.0)],
)
def test_ticks_are_round_and_reach_the_top(high: float, last: float) -> None:
    found = ticks(high)
    assert found[0] == 0.0
    assert found[-1] == pytest.approx(last)
    assert 2 <= len(found) <= 11


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.replace("<!doctype html>", ""))


def test_bars_have_axes_units_values_and_spread() -> None:
    series = [Series("ours <1>", (Bar(2.0, 1.8, 2.5), None)), Series("peer", (Bar(4.0), Bar(8.0)))]
    figure = bar_chart("net: latency", axis="batch", unit="ms an image", places=["1", "8"],
                       series=series, note="medians")  # fmt: skip
    tree = drawn(figure)
    texts = [element.text for element in tree.iter() if element.tag == "text"]
    assert {"batch", "ms an image", "1", "8", "0", "2", "4"} <= set(texts)
    assert len(re.findall("<title>", figure)) == 3
    assert "ours &lt;1&gt;, 1: 2 (1.8 to 2.5)" in figure
    assert figure.count('class="whisker"') == 1
    # Twice the value is twice as high.
    heights = [float(e.attrib["height"]) for e in tree.iter("rect") if e.find("title") is not None]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
    assert heights[2] == pytest.approx(2 * heights[1], rel=0.01)


def test_columns_and_histograms_are_sound() -> None:
    columns = [Column(f"layer {n} & <co>", float(n), n < 2) for n in range(30)]
    figure = column_chart("error", axis="layer", unit="SQNR, dB", columns=columns, high=40.0)
    drawn(figure)
    assert (figure.count('"s-bad"'), figure.count('"s1"')) == (2, 28)
    picture = histogram([1, 0, 16], -1.0, 1.0, [-0.5, 0.5, 9.0], "w")
    assert drawn(picture).attrib["role"] == "img"
    assert picture.count("s-mark") == 2  # one lies outside
