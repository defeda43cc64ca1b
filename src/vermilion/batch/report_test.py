from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from vermilion.batch.assemble import Failed
from vermilion.batch.batch import Result
from vermilion.batch.devices import BatchDevice
from vermilion.batch.job import Range, Report, WorkerDied
from vermilion.batch.report import batch_report
from vermilion.batch.schedule import DeviceRecord, Span, Work, run_devices
from vermilion.pages.charts import Stretch, lanes_chart

HOSTILE = "</title><script>alert(1)</script>\u202e.png"


def device(number: int) -> BatchDevice:
    return BatchDevice(f"cpu:{number}", "cpu", number, (number,), 1)


class Computes:
    """A worker that dies the first time that it is asked for the input 5."""

    runs_on, notes = "CPU", ()

    def __init__(self, died: list[int]) -> None:
        self._asked: list[Range] = []
        self._died = died

    def begin(self, wanted: Range, *, keep: bool = True) -> None:
        self._asked.append(wanted)

    def finish(self) -> Report:
        wanted = self._asked.pop(0)
        if wanted.start <= 5 < wanted.stop and not self._died:
            self._died.append(wanted.start)
            raise WorkerDied("it is gone")
        return Report({}, 0.01, 0.02, 100.0)

    def close(self) -> None:
        pass


def test_every_range_is_a_stretch_of_its_worker() -> None:
    died: list[int] = []
    ranges = [Range(at, at + 4) for at in range(0, 16, 4)]
    work = Work(ranges, 16, lambda at, why: None, devices=2)
    records = run_devices(
        [device(0), device(1)], work, lambda place: Computes(died), lambda status: None
    )
    spans = [span for record in records for span in record.spans]
    assert died
    assert sum(span.inputs for span in spans if not span.lost) == 16
    assert sum(span.lost for span in spans) == 1
    for record in records:
        moments = [m for span in record.spans for m in (span.begin_s, span.end_s)]
        assert moments == sorted(moments)
        assert not moments or moments[0] >= 0.0


def test_the_page_has_lanes_bars_workers_and_failures() -> None:
    spans = [Span(0.1, 1.0, 8), Span(1.0, 1.5, 8, 1), Span(1.5, 1.6, 8, 0, True)]
    records = (
        DeviceRecord(device(0), "CPU (native)", (), 16, 0, 0.5, 1.2, 200.0, spans=spans),
        DeviceRecord(device(1), "CPU (native)", (), 0, 4, left_out=f"it died: {HOSTILE}"),
    )
    failed = (Failed(3, HOSTILE, "it is not an image that can be read"),)
    done = Result(Path("out.npz"), 16, failed, 0, 8, 1.6, 10.0, records, "7 of 7 native")
    page = batch_report(done, HOSTILE)
    assert "<script" not in page
    main = page.partition("<main")[2].partition("</main>")[0]
    ElementTree.fromstring(f"<main{main}</main>")
    for words in (
        "16 inputs in batches of 8", "1 of 16 inputs have no outputs", "cpu:1 was left", "94%",
        "8 inputs, 1 of them could not be read, 1.00 to 1.50 s",
    ):  # fmt: skip
        assert words in page, words


def test_a_job_that_had_nothing_left_has_no_plots() -> None:
    done = Result(Path("out.npz"), 16, (), 16, 8, 0.0, 0.0, ())
    page = batch_report(done, "m.onnx")
    assert "16 of them in an earlier run" in page
    assert "<svg" not in page


def test_lanes_lie_on_one_axis_of_time() -> None:
    lanes = [("a", [Stretch(0.0, 1.0, "x <1>"), Stretch(1.0, 4.0, "y", True)]), ("b", [])]
    figure = ElementTree.fromstring(lanes_chart("Work", unit="seconds", lanes=lanes))
    boxes = list(figure.iter("rect"))
    widths = [float(box.attrib["width"]) for box in boxes]
    assert abs(widths[1] / widths[0] - 3.0) < 0.01
    assert [box.attrib["class"] for box in boxes] == ["s1", "s-bad"]
    texts = [text.text for text in figure.iter("text")]
    assert {"a", "b", "seconds", "0"} <= set(texts)
