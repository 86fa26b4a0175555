"""The report: one page, whole in itself, opened in a browser."""

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.diagnostics.graph import draw_model, layers
from pmcl.diagnostics.page.about_checks import about_calibration
from pmcl.diagnostics.page.about_training import about_training
from pmcl.diagnostics.page.about_trust import (
    about_datasets,
    about_posteriors,
    about_retention,
    of_parameters,
)
from pmcl.diagnostics.page.elements import fitting, what_fits

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
        side = pm.Normal("side", 0, 0.1, shape=2)  # a dim without a name
        pm.Deterministic("copies", mu * np.ones(10), dims="obs")
        pm.Normal("y", mu + side.sum(), 1, observed=np.zeros(10), dims="obs")
    found = pmcl.fit_amortized(model, network=NETWORK, steps=300, random_seed=1, progressbar=False)
    rng = np.random.default_rng(1)
    for i, name in enumerate(TASKS):
        data = {"y": rng.normal(i, 1, (3, 10))}
        found = found.adapt(data, name=name, steps=30, patience=None, progressbar=False)
    return found


@pytest.fixture(scope="module")
def results(posterior) -> tuple[xr.DataTree, xr.DataTree]:
    """Draws of three datasets, and NUTS."""
    y = np.random.default_rng(2).normal(1, 1, (3, 10))
    names = ["<script>fail()</script>", "usual", "other"]
    data = xr.Dataset({"y": (("dataset", "obs"), y)}, coords={"dataset": names})
    reference = pmcl.sample_reference(
        posterior.compiled.model, data, draws=250, tune=200, random_seed=1, progressbar=False
    )
    idata = posterior.sample(data, 500, random_seed=1)
    # sorted as text they would stand in another order
    idata["dataset_stats"]["khat"][:] = [0.3, -0.5, -0.08]
    return idata, reference


@pytest.fixture(scope="module")
def calibration(posterior) -> xr.DataTree:
    return pmcl.calibrate(posterior, simulations=40, draws=40, random_seed=1, progressbar=False)


@pytest.fixture(scope="module")
def page(posterior, results, calibration, tmp_path_factory) -> Path:
    """A page of everything that there can be."""
    idata, reference = results
    return pmcl.report(
        posterior,
        tmp_path_factory.mktemp("report") / "report.html",
        idata,
        reference=reference,
        calibration=calibration,
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
    ids = [v for tag, name, v in outline.attributes if (tag, name) == ("section", "id")]
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
    assert ("In agreement with the reference on 3 datasets." in text) == agrees
    assert "No doubt about the draws for all 3 datasets." in text
    for record in posterior.records:
        assert f"{record.name} 3 Replay() {record.record.steps}" in text
    engine = idata["dataset_stats"]["engine"].sel(dataset="usual").item()
    assert f"usual {engine} -0.5" in text
    # what is computed row by row may be the data: it is named, and not shown
    assert "side[0]" in text and "copies" in text and "copies[" not in text


def test_what_is_poor_is_at_the_top(posterior, results, tmp_path):
    idata, reference = results
    off = idata.copy(deep=True)
    off["posterior"]["mu"] += 1.0
    off["unconstrained_posterior"]["mu"] += 1.0
    off["dataset_stats"]["warning"][:] = ["", "k-hat 1.20 is above 0.63", ""]
    made = pmcl.report(
        posterior,
        tmp_path / "r.html",
        off,
        reference=reference,
        calibration=False,
        progressbar=False,
    )
    text = " ".join(" ".join(Outline(made.read_text()).text).split())
    top = text[: text.index("The model What was written")]
    assert "The posterior of 1 of 3 datasets should not be trusted ('usual'; of 'usual': " in top
    assert "Draws differ from the reference's, most on" in top
    assert "calibrat" not in top


def test_by_default_it_is_about_the_stored_datasets(posterior, tmp_path):
    made = pmcl.report(
        posterior,
        tmp_path / "new folder" / "r.html",
        calibration=False,
        random_seed=1,
        progressbar=False,
    )
    text = "".join(Outline(made.read_text()).text)
    assert "3 stored datasets" in text and "comparison" not in made.read_text()
    again = pmcl.report(
        posterior, tmp_path / "again.html", calibration=False, random_seed=1, progressbar=False
    )
    minute = r"Made \S+ \S+ UTC"
    assert re.sub(minute, "", again.read_text()) == re.sub(minute, "", made.read_text())


def test_a_reference_needs_draws_to_compare(posterior, results, tmp_path):
    with pytest.raises(ValueError, match="expected `idata`.*Pass the result of `sample`"):
        pmcl.report(posterior, tmp_path / "r.html", reference=results[1])
    assert not (tmp_path / "r.html").exists()


def test_results_of_nuts_are_not_judged_as_importance_sampling(posterior, results, tmp_path):
    with pytest.raises(ValueError, match="lacks .'khat'.*Results of `sample_reference` go to"):
        pmcl.report(posterior, tmp_path / "r.html", results[1])


def verdicts_on(idata: xr.DataTree) -> list[tuple[bool, str]]:
    found = []
    about_datasets(idata, False, found)
    return [(v.good, v.text) for v in found]


def test_where_nuts_took_over_its_own_diagnostics_count(results):
    idata = results[0].copy(deep=True)
    stats = idata["dataset_stats"]
    stats["engine"][:] = ["amortized", "nuts", "amortized"]
    stats["khat"][:] = [0.1, np.inf, 0.2]
    assert verdicts_on(idata) == [(True, "No doubt about the draws for all 3 datasets.")]
    stats["warning"][:] = ["", "r-hat 1.2", ""]
    ((good, text),) = verdicts_on(idata)
    assert not good and text.startswith("NUTS, too, is not to be trusted for 1 of 3 datasets")


def test_too_few_draws_are_no_reason_to_trust(posterior, results):
    data = {"y": np.random.default_rng(2).normal(1, 1, (2, 10))}
    (good, text), *_ = verdicts_on(posterior.sample(data, 10, random_seed=1))
    assert not good and "cannot be computed for 2 of 2 datasets" in text


def test_draws_that_do_not_count_alike_are_weighted(posterior):
    network = replace(NETWORK, whiten=False)
    options = {"network": network, "steps": 100, "random_seed": 1, "progressbar": False}
    posterior = pmcl.fit_amortized(posterior.compiled.model, **options)
    data = {"y": np.random.default_rng(2).normal(5, 1, (1, 10))}
    idata = posterior.sample(data, 4000, refine=False, random_seed=1)
    assert any("count by their weights" in text for _, text in verdicts_on(idata))
    (table,) = about_posteriors(of_parameters(posterior, idata)).folded
    (mean,) = [float(row[1]) for row in table.rows if row[0] == "mu"]
    weight = np.exp(idata["sample_stats"]["log_weight"].values.ravel())
    mu = idata["posterior"]["mu"].values.ravel()
    expected = np.sum(weight * mu) / weight.sum()
    assert mean == pytest.approx(expected, abs=0.02) and abs(mu.mean() - expected) > 0.03


def test_forgetting_is_judged_on_the_datasets_that_are_stored(posterior):
    def told(**stored: float) -> list[tuple[bool, str]]:
        """What the page says where of a task's first stored dataset a share is left."""
        last = posterior.records[-1]
        then = {r.name: r.after for r in posterior.records}
        changed = {}
        for task in TASKS[:2]:
            if (share := stored.get(task[:4])) is not None:
                q = then[task]
                one = q._replace(
                    names=(f"{task}/{q.names[0]}",),
                    efficiency=share * q.efficiency[:1],
                    khat=q.khat[:1],
                    sc_variance=q.sc_variance[:1],
                )
                changed[task] = one
        records = (*posterior.records[:-1], last._replace(stored=changed))
        found = []
        about_retention(replace(posterior, records=records), found)
        return [(v.good, v.text) for v in found]

    ((good, text),) = told(calm=0.4, **{"<b>b": 0.9})
    assert not good and text.startswith("The network has forgotten 'calm': on their stored")
    ((good, text),) = told(calm=0.6, **{"<b>b": 2.0})
    assert good and text.startswith("On the stored datasets of 2 earlier tasks")
    ((good, text),) = told()
    assert not good and "cannot be said: none of their datasets is stored" in text


def test_a_posterior_whose_tasks_were_removed_is_not_said_to_know_none(posterior):
    bare = posterior
    for task in TASKS:
        bare = bare.forget(task)
    assert "records were removed" in about_training(bare).text
    never = replace(bare, pretrained=None)
    assert "on no real data" in about_training(never).text


def test_the_verdict_on_calibration_is_of_all_tests(calibration):
    def told(**p: float) -> tuple[bool, str]:
        changed = calibration.copy(deep=True)
        for name in changed["uniformity"].data_vars:
            changed["uniformity"][name][...] = p.get(name, 0.5)
        changed["tarp"]["p_value"][...] = p.get("tarp", 0.5)
        found = []
        about_calibration(changed, found)
        return found[0].good, found[0].text

    assert told() == (True, "Of the network alone: no miscalibration found in 40 simulations.")
    # 14 tests: a p-value of 0.002 is nothing, one of 1e-6 is
    assert told(mu=0.002)[0]
    assert told(mu=1e-6) == (False, "Of the network alone: not calibrated on 40 simulations: 'mu'.")
    good, text = told(tarp=1e-6)
    assert not good and "all parameters together (TARP)" in text
    assert not told(mu=np.nan)[0]


def test_a_figure_has_room_for_sixteen():
    draws = xr.Dataset(
        {
            "school": (("chain", "draw", "place"), np.zeros((1, 5, 50))),
            "mu": (("chain", "draw"), np.zeros((1, 5))),
        }
    )
    shown = fitting(draws)
    assert shown["school"].sizes["place"] == 16 and list(shown) == ["school"]
    assert "Shown: school; of long ones the first" in what_fits(shown, draws)
    few = draws.isel(place=slice(15))
    assert fitting(few).identical(few) and what_fits(fitting(few), few) == ""
    wide = xr.Dataset({"w": (("chain", "draw", "a", "b"), np.zeros((1, 5, 30, 40)))})
    assert 8 <= np.prod([fitting(wide)["w"].sizes[d] for d in "ab"]) <= 16


def test_a_missing_extra_is_named(posterior, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r'the report needs jinja2.*"pmcl\[report\]"'):
        pmcl.report(posterior, tmp_path / "r.html")


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


@pytest.fixture(params=[1200, 768, 390], ids=["desk", "tablet", "phone"])
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
    assert len(opened.column(1, 1)) == 3


def test_what_is_folded_opens_and_is_printed(opened):
    hidden = opened.page.locator("details table")
    count = hidden.count()
    assert count == 5 and not any(hidden.nth(i).is_visible() for i in range(count))
    opened.page.locator("details summary").first.click()
    assert hidden.first.is_visible()
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert all(hidden.nth(i).is_visible() for i in range(count))
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert [hidden.nth(i).is_visible() for i in range(count)] == [True] + [False] * (count - 1)
    pdf = opened.page.pdf()
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
