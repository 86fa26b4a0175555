"""The report: one page, whole in itself, opened in a browser."""

import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.report.graph import draw_model, layers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TASKS = ("calm", "<b>bold</b> & $x^2$", "a name of a task that is far longer than any label")
NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=8, width=16, depth=1, pooled=16, head_width=16, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=16, depth=1, knots=4, affine_width=16),
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    with pm.Model(coords={"obs": range(10)}) as model:
        mu = pm.Normal("mu", 1, 2)
        pm.Deterministic("twice", 2 * mu)
        pm.Normal("y", mu, 1, observed=np.zeros(10), dims="obs")
    found = pmcl.fit_amortized(model, network=NETWORK, steps=300, random_seed=1, progressbar=False)
    rng = np.random.default_rng(1)
    for i, name in enumerate(TASKS):
        data = {"y": rng.normal(i, 1, (3, 10))}
        found = found.adapt(data, name=name, steps=30, progressbar=False)
    return found


@pytest.fixture(scope="module")
def results(posterior) -> tuple[xr.DataTree, xr.DataTree]:
    """Draws of two datasets, and exact ones."""
    y = np.random.default_rng(2).normal(1, 1, (2, 10))
    names = ["<script>fail()</script>", "usual"]
    data = xr.Dataset({"y": (("dataset", "obs"), y)}, coords={"dataset": names})
    reference = pmcl.sample_reference(
        posterior.compiled.model, data, draws=250, tune=200, random_seed=1, progressbar=False
    )
    return posterior.sample(data, 500, random_seed=1), reference


@pytest.fixture(scope="module")
def page(posterior, results, tmp_path_factory) -> Path:
    """A page of everything that there can be."""
    idata, reference = results
    return posterior.report(
        tmp_path_factory.mktemp("report") / "report.html",
        idata,
        reference=reference,
        title="Trial <script>fail()</script>",
        random_seed=1,
        progressbar=False,
    )


class Outline(HTMLParser):
    """Tags, ids, sources and text of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *a) for a in attrs]

    def handle_data(self, data):
        self.text.append(data)


def test_it_has_everything_and_fetches_nothing(page):
    outline = Outline(page.read_text())
    ids = [value for _, name, value in outline.attributes if name == "id"]
    assert ids == [
        "model", "training", "retention", "datasets", "posteriors", "calibration", "comparison"
    ]  # fmt: skip
    sources = [v for _, name, v in outline.attributes if name in ("src", "href", "srcset")]
    assert len(sources) > 10
    assert all(s.startswith(("data:", "#")) for s in sources)
    images = [v for t, name, v in outline.attributes if (t, name) == ("img", "src")]
    captions = [v for t, name, v in outline.attributes if (t, name) == ("img", "alt")]
    assert len(images) == len(captions) == 8 and all(captions)
    assert len(set(images)) == 8


def test_names_are_text(page):
    outline = Outline(page.read_text())
    assert outline.tags.count("script") == 1  # ours
    assert outline.tags.count("b") == len(re.findall("<li[ >]", page.read_text()))
    text = "".join(outline.text)
    for name in (*TASKS, "<script>fail()</script>", "Trial <script>fail()</script>"):
        assert name in text


def test_it_says_what_was_found(posterior, results, page):
    idata, reference = results
    text = " ".join(" ".join(Outline(page.read_text()).text).split())
    agrees = bool(pmcl.compare(idata, reference).attrs["agrees"])
    assert ("In agreement with the reference on 2 datasets." in text) == agrees
    assert "Draws can be trusted for all 2 datasets (k-hat)." in text
    for record in posterior.records:
        assert f"{record.name} 3 Replay() {record.record.steps}" in text
    khat = idata["dataset_stats"]["khat"].sel(dataset="usual").item()
    assert (
        f"usual {idata['dataset_stats']['engine'].sel(dataset='usual').item()} {khat:.3g}" in text
    )


def test_what_is_poor_is_at_the_top(posterior, results, tmp_path):
    """A network that was never any good, forgets, and differs from the reference."""
    idata, reference = results
    off = idata.copy(deep=True)
    off["posterior"]["mu"] += 1.0
    off["unconstrained_posterior"]["mu"] += 1.0
    off["dataset_stats"]["warning"][:] = ["", "k-hat 1.20 is above 0.63"]
    made = posterior.report(
        tmp_path / "r.html", off, reference=reference, calibration=False, progressbar=False
    )
    text = " ".join(" ".join(Outline(made.read_text()).text).split())
    top = text[: text.index("The model What was written")]
    assert "Draws for 1 of 2 datasets should not be trusted: 'usual'." in top
    assert "Draws differ from the reference's, most on" in top
    assert "calibrat" not in top


def test_by_default_it_is_about_the_stored_datasets(posterior, tmp_path):
    made = posterior.report(
        tmp_path / "new folder" / "r.html", calibration=False, random_seed=1, progressbar=False
    )
    text = "".join(Outline(made.read_text()).text)
    assert "3 stored datasets" in text and "comparison" not in made.read_text()
    assert "0.0, 1.0" not in text  # names and figures only: no data
    again = posterior.report(
        tmp_path / "again.html", calibration=False, random_seed=1, progressbar=False
    )
    minute = r"Made \S+ \S+ UTC"
    assert re.sub(minute, "", again.read_text()) == re.sub(minute, "", made.read_text())


def test_a_reference_needs_draws_to_compare(posterior, results, tmp_path):
    with pytest.raises(ValueError, match="expected `idata`.*Pass the result of `sample`"):
        posterior.report(tmp_path / "r.html", reference=results[1])
    assert not (tmp_path / "r.html").exists()


def test_a_missing_extra_is_named(posterior, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r'the report needs jinja2.*"pmcl\[report\]"'):
        posterior.report(tmp_path / "r.html")


def test_causes_stand_above_effects():
    parents = {"y": {"a", "b"}, "a": {"m"}, "b": {"n"}, "m": set(), "n": set(), "x": set()}
    rows = layers(parents)
    row_of = {name: i for i, row in enumerate(rows) for name in row}
    assert sorted(row_of) == sorted(parents)
    assert all(row_of[p] < row_of[c] for c, above in parents.items() for p in above)
    assert rows == [["m", "n", "x"], ["a", "b"], ["y"]]


def test_the_graph_has_every_variable_and_edge():
    with pm.Model(coords={"obs": range(3), "group": ["a", "b"]}) as model:
        x = pm.Data("x", np.zeros(3), dims="obs")
        mu = pm.Normal("mu $1", 0, 1, dims="group")
        twice = pm.Deterministic("twice", 2 * mu, dims="group")
        pm.Potential("soft", -(mu**2).sum())
        pm.Poisson("y", pm.math.exp(twice[0] + x), observed=np.ones(3), dims="obs")
    figure = draw_model(model)
    texts = figure.axes[0].texts
    labels = {t.get_text() for t in texts} - {""}
    assert labels == {
        "x\ndata\nobs 3",
        "mu $1\n~ Normal\ngroup 2",
        "twice\ndeterministic\ngroup 2",
        "soft\npotential",
        "y\n~ Poisson\nobs 3",
    }
    assert len([t for t in texts if not t.get_text()]) == 4  # mu-twice, mu-soft, twice-y, x-y


# --- in a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator:
    if CHROMIUM is None:
        pytest.skip("needs a browser: install chromium")
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Opened:
    """A page in a browser, with everything that it complained of or asked for."""

    def __init__(self, browser, path: Path, width: int):
        self.said, self.asked = [], []
        self.page = browser.new_page(viewport={"width": width, "height": 800})
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def column(self, table: int, column: int) -> list[str]:
        cells = f"table.sortable >> nth={table} >> tbody tr:visible td:nth-child({column})"
        return self.page.locator(cells).all_inner_texts()


@pytest.fixture(params=[1200, 390], ids=["desk", "phone"])
def opened(browser, page, request) -> Iterator[Opened]:
    found = Opened(browser, page, request.param)
    yield found
    assert found.said == []
    found.page.close()


def test_it_opens_without_a_word_and_fits_the_screen(opened, page):
    assert {u for u in opened.asked if not u.startswith("data:")} == {page.as_uri()}
    inner, outer = opened.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert inner <= outer
    drawn = opened.page.eval_on_selector_all("img", "all => all.map(i => i.naturalWidth)")
    assert len(drawn) == 8 and min(drawn) > 100
    assert opened.page.title() == "Trial <script>fail()</script>"


def test_figures_are_zoomed(opened):
    image = opened.page.locator("figure img").nth(1)
    buttons = opened.page.locator("figure").nth(1).locator("button")
    first = image.bounding_box()["width"]
    frame = opened.page.locator("figure .pan").nth(1).bounding_box()["width"]
    assert first <= frame
    buttons.nth(1).click()
    buttons.nth(1).click()
    assert image.bounding_box()["width"] == pytest.approx(first * 1.5**2, rel=0.02)
    buttons.nth(0).click()
    assert image.bounding_box()["width"] == pytest.approx(first * 1.5**2 * 0.67, rel=0.02)
    buttons.nth(2).click()
    assert image.bounding_box()["width"] == pytest.approx(first, rel=0.02)


def test_tables_are_sorted_and_searched(opened, results):
    khat = results[0]["dataset_stats"]["khat"].to_series().sort_values()
    at = opened.page.locator("table.sortable").nth(1)  # the first is folded
    at.locator("th button").nth(2).click()
    assert opened.column(1, 1) == list(khat.index)
    at.locator("th button").nth(2).click()
    assert opened.column(1, 1) == list(khat.index[::-1])
    assert at.locator("th").nth(2).get_attribute("aria-sort") == "descending"
    search = opened.page.locator("#datasets input[type=search]")
    search.fill("USUAL")
    assert opened.column(1, 1) == ["usual"]
    search.fill("")
    assert len(opened.column(1, 1)) == 2


def test_what_is_folded_opens_and_is_printed(opened):
    hidden = opened.page.locator("details table")
    count = hidden.count()
    assert count == 4 and not any(hidden.nth(i).is_visible() for i in range(count))
    opened.page.locator("details summary").first.click()
    assert hidden.first.is_visible()
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert all(hidden.nth(i).is_visible() for i in range(count))
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert [hidden.nth(i).is_visible() for i in range(count)] == [True] + [False] * (count - 1)
    pdf = opened.page.pdf()
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
