"""The page in a browser: what a person does with it, and that nothing is let in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import models
from browser import Browser, Page
from model_wheels import package_file
from vermilion.pages.charts import Bar, Series, bar_chart
from vermilion.pages.document import report_page
from vermilion.view.build import build_view
from vermilion.view.build_test import HOSTILE, hostile_model
from vermilion.view.fold_test import long_quantized
from vermilion.view.page import view_page

pytestmark = pytest.mark.needs("chromium")

READY = "document.documentElement.dataset.ready === 'yes'"
Show = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def show(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Show]:
    """Return what opens the page of models; each is made and opened once."""
    folder = tmp_path_factory.mktemp("pages")
    pages: dict[tuple[str, ...], Page] = {}

    def shown(*names: str, **options: Any) -> Page:
        if names not in pages:
            paths = []
            for name in names:
                path = folder / f"{name}.onnx"
                if name in models.PACKAGE_MODELS:
                    path = models.package_model_path(name)
                elif not path.exists():
                    ir.save(MODELS[name](), path)
                paths.append(path)
            file = folder / f"{'-'.join(names)}.html"
            file.write_text(view_page(build_view(paths, **options).data), encoding="utf-8")
            pages[names] = browser.open(file)
            pages[names].wait(READY)
        pages[names].front()
        return pages[names]

    yield shown
    for page in pages.values():
        assert page.complaints() == []


MODELS: dict[str, Callable[[], ir.Model]] = {
    "resnet50": models.resnet50,
    "mobilenet": models.mobilenet,
    "transformer": models.transformer_block,
    "long": lambda: long_quantized(200),
    "longest": lambda: long_quantized(1000),  # 5,002 nodes
    "hostile": hostile_model,
    "before": lambda: models.small_cnn(bn=True),
    "after": models.small_cnn,
}
RUN = {"resnet50": {}, "mobilenet": {}, "transformer": {}, "ocr-rec": {"x": (1, 3, 48, 320)},
       "nsfw": {"input:0": (1, 224, 224, 3)}, "long": {}}  # fmt: skip


LONGEST = pytest.param("longest", marks=pytest.mark.long)


@pytest.mark.parametrize("name", [*RUN, LONGEST])
def test_a_model_is_there_at_once(show: Show, name: str) -> None:
    page = show(name, dims=RUN.get(name, {}), target="strix")
    # The page's own work until it can be used, on whatever else the machine does meanwhile.
    assert page.worked_s() < 1.0
    boxes = page.run("document.querySelectorAll('.map .item').length")
    assert 3 <= boxes <= 60
    assert page.run("document.getElementById('title').textContent").endswith(".onnx")


def test_search_opens_the_card_of_a_node(show: Show) -> None:
    page = show("resnet50", dims={}, target="strix")
    page.press("/")
    assert page.run("document.activeElement.id") == "search"
    page.ask("Input.insertText", text="conv layer3.2")
    page.settle()
    listed = page.run(
        "[...document.querySelectorAll('#found [role=option]')].map((o) => o.textContent)"
    )
    # First what has the words in its own name, then what reads or makes such a tensor.
    assert listed[0] == "Conv layer3.2.conv1/Conv"
    page.press("Enter")
    card = page.run("document.getElementById('panel').textContent")
    assert "layer3.2.conv1" in card
    assert "kernel_shape" in card
    assert "counted" in card
    # The box is on the map, in the groups that hold it, which were opened.
    picked = "document.querySelector('.map .item.picked:not(.group)')"
    box = page.run(f"(() => {{ const r = {picked}.getBoundingClientRect(); return [r.x, r.y] }})()")
    assert 0 < box[0] < 950
    assert 60 < box[1] < 900
    page.press("Escape")
    assert page.run("document.getElementById('search').value") == ""


def test_groups_open_and_fold(show: Show) -> None:
    page = show("resnet50", dims={}, target="strix")
    page.run("atlas.foldAll(); select(null); document.getElementById('map').focus(); 0")
    page.settle()
    before = page.run("atlas.shown.length")
    page.press("u")
    assert page.run("atlas.opened.size") >= 3
    page.press("f")
    assert (page.run("atlas.opened.size"), page.run("atlas.shown.length")) == (0, before)
    page.click_on(".map .group", count=2)
    assert page.run("atlas.opened.size") == 1
    page.press("f")
    assert page.run("atlas.opened.size") == 0


def test_keys_walk_along_the_edges(show: Show) -> None:
    page = show("mobilenet", dims={}, target="strix")
    page.run("atlas.foldAll(); select(null); document.getElementById('map').focus(); 0")
    title = "document.querySelector('#panel h2').textContent"
    page.press("ArrowDown")  # the first box
    first = page.run(title)
    page.press("ArrowDown")
    assert page.run(title) != first
    told = page.run("document.getElementById('told').textContent")
    assert "reads from 1" in told
    page.press("ArrowUp")
    assert page.run(title) == first


def test_colours_and_targets(show: Show) -> None:
    page = show("mobilenet", dims={}, target="strix")
    options = page.run("[...document.querySelectorAll('#colour option:not(:disabled)')].length")
    assert options >= 5
    seen = set()
    for _ in range(options):
        page.press("c")
        seen.add(page.run("state.colouring.name"))
        assert page.run("document.getElementById('legend').textContent")
    assert len(seen) == options
    page.run("document.getElementById('colour').value = 'device';"
             "document.getElementById('colour').dispatchEvent(new Event('change'))")  # fmt: skip
    page.run("setTarget(M[0].targets.findIndex((t) => t.name === 'phoenix')); 0")
    strip = page.run("document.getElementById('strip').textContent")
    assert "supported modelled" in strip
    assert "0 of " in strip  # no float model runs on that chip
    reasons = page.run("state.tab = 'reasons'; show();"
                       "document.getElementById('panel').textContent")  # fmt: skip
    assert "hint: " in reasons


@pytest.mark.parametrize("name", ["long", LONGEST])
def test_thousands_of_nodes_stay_fluid(show: Show, name: str) -> None:
    page = show(name, dims={}, target="strix")
    opened = page.run("(() => { const t = performance.now(); atlas.unfold(); atlas.unfold();"
                      " atlas.unfold(); atlas.all(); atlas.paint();"
                      " return performance.now() - t })()")  # fmt: skip
    assert page.run("atlas.opened.size") > page.run("M[0].nodes.length") / 5
    assert opened < 20_000.0
    frame = page.run(
        "(() => { const t = performance.now(); for (let n = 0; n < 10; n += 1) {"
        " atlas.view.k *= 1.1; atlas.paint() } return (performance.now() - t) / 10 })()"
    )
    # What is too small to read is one box, what is not on the screen none.
    assert page.run("document.querySelectorAll('.map .item').length") < 1500
    assert frame < 100.0
    page.run("atlas.foldAll(); 0")


def test_two_models(show: Show) -> None:
    page = show("before", "after")
    assert "Conv + BatchNormalization → Conv" in page.run(
        "document.getElementById('panel').textContent"
    )
    assert page.run("state.colouring.name") == "difference"
    nodes = page.run("M[state.model].nodes.length")
    page.press("b")
    assert (nodes, page.run("M[state.model].nodes.length")) == (10, 8)
    page.press("b")


def test_hostile_names_stay_text(show: Show) -> None:
    page = show("hostile")
    page.run("atlas.unfold(); go(0); 0")
    page.settle()
    text = page.run("document.getElementById('panel').textContent")
    assert HOSTILE[0] in text
    page.run("go(2); 0")
    assert "\\u202egnp.txt\\u2066{{constructor}}" in page.run(
        "document.getElementById('panel').textContent"
    )
    assert page.run("document.querySelectorAll('img, iframe, object, embed, link').length") == 0
    assert page.run("document.scripts.length") == 2
    page.press("/")
    page.ask("Input.insertText", text="alert")
    page.settle()
    assert page.run("document.querySelectorAll('#found script, #found img').length") == 0
    page.press("Escape")


def test_nothing_is_let_in(browser: Browser, show: Show, tmp_path: Path) -> None:
    file = tmp_path / "attacked.html"
    page = view_page(build_view([models.package_model_path("ocr-cls")]).data)
    attack = "<script>window.hit = 1</script><img src='https://example.invalid/x.png'></body>"
    file.write_text(page.replace("</body>", attack), encoding="utf-8")
    opened = browser.open(file)
    opened.wait(READY)
    assert opened.run("window.hit ?? 0") == 0
    tried = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done' }"
    assert opened.run(tried + " catch (error) { return error.name } })()") == "TypeError"
    refused = [line for line in opened.complaints() if "Content Security Policy" in line]
    assert len(refused) >= 2
    opened.close()


def test_it_is_printed(show: Show) -> None:
    document = show("mobilenet", dims={}, target="strix").printed()
    assert document.startswith(b"%PDF")
    assert len(document) > 10_000


AXE = "axe.run(document, {resultTypes: ['violations']}).then((r) => JSON.stringify(r.violations))"


@pytest.fixture(scope="module")
def axe() -> str:
    return package_file("axe-playwright-python", "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("names", [("mobilenet",), ("before", "after")])
def test_a_screen_reader_can_read_it(show: Show, axe: str, names: tuple[str, ...]) -> None:
    page = show(*names)
    page.run(f"{axe}; 0")
    page.run("go(1); 0")
    tabs = page.run("PANELS.filter((p) => p[3]()).map((p) => p[0])")
    for theme, tab in [("dark", "card"), ("dark", tabs[1]), *(("light", tab) for tab in tabs)]:
        page.run(f"document.documentElement.dataset.theme = '{theme}'; state.tab = '{tab}'; show()")
        violations = json.loads(page.run(AXE))
        assert [one for one in violations if one["impact"] in ("serious", "critical")] == []


def test_reports_can_be_read_too(browser: Browser, axe: str, tmp_path: Path) -> None:
    series = [Series("ours", (Bar(1.0, 0.9, 1.2),)), Series("peer", (Bar(2.0),))]
    chart = bar_chart("latency", axis="batch", unit="ms", places=["1"], series=series, note="n")
    file = tmp_path / "report.html"
    file.write_text(report_page("Report", "On a machine.", [chart]), encoding="utf-8")
    page = browser.open(file)
    page.run(f"{axe}; 0")
    for scheme in ("light", "dark"):
        page.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
        violations = json.loads(page.run(AXE))
        assert [one for one in violations if one["impact"] in ("serious", "critical")] == []
    assert page.complaints() == []
    page.close()
