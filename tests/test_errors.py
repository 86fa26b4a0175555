"""Bad inputs of every kind: an error of pmcl's own that names the thing, and nothing is broken."""

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import test_refuse as refused
import xarray as xr

import pmcl

ROWS = 10
HERE = Path(pmcl.__file__).parent
NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=8, head_width=16, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=16),
)
NORMAL = pm.Normal.dist(0, 1)


def renamed(group: xr.Dataset) -> xr.Dataset:
    return group.assign_coords(dataset=["1", "5"]) if "dataset" in group.dims else group


def prior_of(tree: xr.DataTree, dataset: int) -> None:
    with pm.Model():
        pmcl.as_prior(tree, dataset=dataset, model=build())


def build() -> pm.Model:
    with pm.Model(coords={"obs": range(ROWS), "side": ["l", "r"]}) as model:
        x = pm.Data("x", np.ones(ROWS), dims="obs")
        b = pm.Normal("b", dims="side")
        s = pm.HalfNormal("s")
        pm.Normal("y", b[0] + b[1] * x, s, observed=np.zeros(ROWS), dims="obs")
        pm.Poisson("n", pm.math.exp(b[0]), observed=np.zeros(ROWS, int), dims="obs")
    return model


def fit(model: pm.Model | None = None, **options: object) -> pmcl.AmortizedPosterior:
    settings = {
        "covariates": {"x": NORMAL}, "network": NETWORK, "steps": 20, "batch_size": 8,
        "validation": 16, "random_seed": 0, "progressbar": False, "exchangeable": "obs", **options,
    }  # fmt: skip
    return pmcl.fit_amortized(build() if model is None else model, **settings)


def task(datasets: int = 2, **changes: object) -> dict[str, object]:
    rng = np.random.default_rng(0)
    good = {
        "x": rng.normal(size=(datasets, ROWS)),
        "y": rng.normal(size=(datasets, ROWS)),
        "n": rng.poisson(1, size=(datasets, ROWS)),
    }
    return {k: v for k, v in {**good, **changes}.items() if v is not None}


def with_(value: float, name: str = "y") -> dict[str, object]:
    data = np.array(task()[name], float)
    data[1, 3] = value
    return task(**{name: data})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A posterior, and one that has been adapted to a task."""
    posterior = fit()
    few = {"steps": 2, "random_seed": 0, "progressbar": False}
    adapted = posterior.adapt(task(), name="first", strategy=pmcl.Replay(), **few)
    folder = tmp_path_factory.mktemp("errors")
    pmcl.save(posterior, folder / "state.zarr.zip")
    (folder / "text.zarr.zip").write_text("not a state")
    tree = posterior.sample(task(), 100, refine=False, random_seed=0, progressbar=False)
    return SimpleNamespace(p=posterior, q=adapted, folder=folder, few=few, tree=tree)


def other_model() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("m"), 1, observed=0.0)
    return model


def adapt(m: SimpleNamespace, data: object = None, **options: object) -> None:
    m.p.adapt(task() if data is None else data, **{"name": "t", **m.few, **options})


def model_of(build_one: Callable[[], None]) -> pm.Model:
    with pm.Model() as model:
        build_one()
    return model


def refuse_model(name: str, _: SimpleNamespace) -> None:
    fit(model_of(getattr(refused, name)), covariates=None, exchangeable=None)


def frame(**columns: object) -> pd.DataFrame:
    one = {"dataset": ["u"] * 3, "x": [0.0, 1, 2], "y": [0.0, 1, 2], "n": [0, 1, 2], **columns}
    return pd.DataFrame({k: v for k, v in one.items() if v is not None})


U, D, S, V, T = pmcl.UnsupportedModelError, pmcl.DataError, pmcl.StateError, ValueError, TypeError

CASES: dict[str, tuple[Callable, type[Exception], str]] = {
    # --- models
    **{
        f"model: {name}": (
            partial(refuse_model, name),
            U,
            message,
        )
        for name, message in {
            "discrete_free_variable": "Free variable 'rate' is discrete",
            "potential": "Potential .* cannot be simulated",
            "improper": "'mu' has an improper prior.*proper one",
            "nothing_observed": "no observed variable",
            "nothing_free": "no free variable",
            "nameless_randomness": "'noisy'.*give it a name",
            "free_scale_of_icar": "'phi' is a `pm.ICAR`",
        }.items()
    },
    "model: no model": (lambda m: pmcl.fit_amortized(progressbar=False), T, "model"),
    "model: not a model": (lambda m: fit("linear"), T, "model"),
    # --- covariates
    "covariate: unknown": (lambda m: fit(covariates={"x": NORMAL, "q": NORMAL}), V, "'q'"),
    "covariate: text": (
        lambda m: fit(covariates={"x": "normal"}),
        T, r"covariates\['x'\].*distribution"),
    "covariate: wrong width": (
        lambda m: fit(covariates={"x": pm.Normal.dist(0, 1, shape=3)}),
        V,
        r"covariates\['x'\]: expected the distribution of one entry",
    ),
    "covariate: empty table": (lambda m: fit(covariates={"x": np.zeros(0)}), V, "at least one row"),
    "covariate: table of pairs": (
        lambda m: fit(covariates={"x": np.zeros((5, 3))}),
        V, r"\(5, 3\)"),
    "covariate: NaN in a table": (
        lambda m: fit(covariates={"x": np.array([0, np.nan])}), V, "finite values, got 1"),
    "covariate: function of a wrong length": (
        lambda m: fit(covariates={"x": lambda rng, n: rng.normal(size=n + 1)}), V, "length 10"),
    "covariate: function of a generator alone": (
        lambda m: fit(covariates={"x": lambda rng: rng.normal(size=10)}), TypeError,
        r"covariates\['x'\]: expected a function of two arguments"),
    "covariate: holds the observations": (
        lambda m: fit(covariates={"y": NORMAL}), V, "'y' is not a `pm.Data`"),
    # --- options of the fit
    "fit: unknown dim": (lambda m: fit(exchangeable="row"), V, r"exchangeable='row'.*\['obs'\]"),
    "fit: both dims": (lambda m: fit(sequence="obs"), V, "`exchangeable` or `sequence`, both"),
    "fit: no steps": (lambda m: fit(steps=0), V, "steps: expected at least 1, got 0"),
    "fit: empty batch": (lambda m: fit(batch_size=0), V, "batch_size: expected at least 1"),
    "fit: no validation": (lambda m: fit(validation=0), V, "validation: expected at least 1"),
    "fit: lengths the wrong way": (lambda m: fit(lengths=(9, 3)), V, "lengths: expected"),
    "fit: all missing": (lambda m: fit(missing=1), V, "missing: expected a fraction"),
    "fit: unknown backend": (lambda m: fit(backend="numpy"), V, "'auto', 'jax' or 'pytensor'"),
    "fit: unknown cell": (
        lambda m: fit(network=pmcl.Recurrent(cell="rnn"), exchangeable=None, sequence="obs"),
        V, "'gru' or 'lstm', got 'rnn'"),
    "fit: a network of words": (lambda m: fit(network="transformer"), T, "network: expected"),
    "fit: a rate that is none": (lambda m: fit(learning_rate=-1.0), V, "learning_rate: expected"),
    # --- tasks
    "task: a number": (lambda m: m.p.sample(3), D, "expected an xarray.Dataset.*got int"),
    "task: nothing": (lambda m: m.p.sample({}), D, "'y'"),
    "task: no datasets": (lambda m: m.p.sample(task(0)), D, "at least one dataset"),
    "task: lacks a covariate": (lambda m: m.p.sample(task(x=None)), D, r"\['x'\] did not come"),
    "task: lacks an observation": (lambda m: m.p.sample(task(y=None)), D, r"\['y'\] did not come"),
    "task: unknown variable": (lambda m: m.p.sample(task(q=np.zeros(3))), D, r"\['q'\] is neither"),
    "task: wrong rank": (lambda m: m.p.sample(task(y=np.zeros((2, 3, 4)))), D, "'y'.*shape"),
    "task: rows differ": (
        lambda m: m.p.sample(task(y=np.zeros((2, 7)))),
        D, "'n' of dataset '0': expected length 7"),
    "task: counts of datasets differ": (
        lambda m: m.p.sample(task(y=np.zeros((3, ROWS)))), D, "different numbers of datasets"),
    "task: text": (lambda m: m.p.sample(task(y=np.full((2, ROWS), "a"))), D, "'y'.*numbers"),
    "task: complex": (
        lambda m: m.p.sample(task(y=np.zeros((2, ROWS), complex))),
        D, "'y'.*complex"),
    "task: infinite": (lambda m: m.p.sample(with_(np.inf)), D, "'y' of dataset '1'.*finite"),
    "task: NaN in a covariate": (
        lambda m: m.p.sample(with_(np.nan, "x")), D, "'x' of dataset '1'.*without gaps"),
    "task: all missing": (
        lambda m: m.p.sample(task(y=np.full((2, ROWS), np.nan), n=np.full((2, ROWS), np.nan))),
        D, "Dataset '0': expected at least one observed value"),
    "task: fractions for counts": (lambda m: m.p.sample(with_(0.5, "n")), D, "'n'.*integers"),
    "task: names twice": (
        lambda m: m.p.sample(xr.Dataset(
            {k: (("dataset", "obs"), v) for k, v in task().items()}, coords={"dataset": ["u", "u"]}
        )), D, r"names must differ.*\['u'\]"),
    "task: wrong dims": (
        lambda m: m.p.sample(xr.Dataset({k: (("dataset", "t"), v) for k, v in task().items()})),
        D, r"expected dims \('obs',\).*'t'"),
    "task: a table with a nameless row": (
        lambda m: m.p.sample(frame(dataset=["u", None, "u"])), D, "1 rows have none"),
    "task: a table without a column": (
        lambda m: m.p.sample(frame(y=None)),
        D, r"column\(s\) \['y'\]"),
    "task: empty datasets": (lambda m: m.p.sample(task(
        x=np.zeros((2, 0)), y=np.zeros((2, 0)), n=np.zeros((2, 0), int))), D, "at least one value"),
    # --- options of the calls
    "sample: no draws": (lambda m: m.p.sample(task(), 0), V, "draws: expected at least 1, got 0"),
    "sample: unknown variable": (
        lambda m: m.p.sample(task(), 5, var_names=["q"]), V, r"var_names.*\['q'\]"),
    "sample: unknown refinement": (
        lambda m: m.p.sample(task(), 5, refine="much"), (T, V), "refine: expected"),
    "sample: a store that is there": (
        lambda m: m.p.sample(task(), 5, store=m.folder), FileExistsError, "is there already"),
    "adapt: no strategy": (lambda m: adapt(m, strategy="replay"), T, "strategy: expected"),
    "adapt: one twice": (
        lambda m: adapt(m, strategy=(pmcl.Replay(), pmcl.Replay())), V, "different kinds"),
    "adapt: no objective": (lambda m: adapt(m, objective="KL"), T, "objective: expected"),
    "adapt: no steps": (lambda m: adapt(m, steps=0), V, "steps: expected at least 1"),
    "adapt: no patience": (lambda m: adapt(m, patience=0), V, "patience: expected at least 1"),
    "adapt: batches of nothing": (lambda m: adapt(m, batch_size=0), V, "batch_size: expected"),
    "adapt: no room": (lambda m: pmcl.Replay(capacity=0), V, "capacity and per_task of at least 1"),
    "adapt: unknown way to keep": (lambda m: pmcl.Replay(keep="best"), V, "keep of"),
    "adapt: an odd distance": (lambda m: pmcl.Replay(distance="L2"), V, "distance 'summary'"),
    "adapt: a rate that is none": (
        lambda m: adapt(m, learning_rate=0.0),
        V, "learning_rate: expected"),
    "pretrain: after a task": (lambda m: m.q.pretrain(5), V, r"adapted to \['first'\]"),
    "forget: an unknown task": (lambda m: m.q.forget("second"), V, r"one of \['first'\].*'second'"),
    "predict: unknown covariate": (
        lambda m: m.p.predict(task(), {"q": np.zeros(3)}), V, r"\['x'\].*did not come"),
    "predict: no names": (
        lambda m: m.p.predict(task(), np.zeros(3)), V, "new_covariates: data: expected values by"),
    "predict: wrong shape": (
        lambda m: m.p.predict(task(), {"x": np.zeros((2, 3, 4))}),
        V, "new_covariates: Variable 'x': expected shape"),
    "one: an unknown dataset": (lambda m: pmcl.one(m.tree, "north"), KeyError, "'0', '1'.*'north'"),
    "one: a number that is a name, not its position": (
        lambda m: pmcl.one(m.tree.map_over_datasets(renamed), 1),
        KeyError, "one: expected a name as text, or a position; 1 is no position of '1'"),
    "as_prior: a number that is a name, not its position": (
        lambda m: prior_of(m.tree.map_over_datasets(renamed), 5), V, "as_prior: expected a name"),
    "compare: other datasets": (
        lambda m: pmcl.compare(m.tree.isel(dataset=[0]), m.tree), V, r"none of \['1'"),
    "load: no such file": (
        lambda m: pmcl.load(m.folder / "none.zip", build()), (S, FileNotFoundError), "none.zip"),
    "load: not a state": (lambda m: pmcl.load(m.folder / "text.zarr.zip", build()), S, "text.zarr"),
    "load: another model": (
        lambda m: pmcl.load(m.folder / "state.zarr.zip", other_model()), S, "another model"),
    "reference: an unknown sampler": (
        lambda m: pmcl.sample_reference(build(), task(), sampler="stan"), V, "'stan'"),
    "reference: no draws": (lambda m: pmcl.sample_reference(build(), task(), draws=0), V, "draws"),
    "as_prior: no data": (lambda m: pmcl.as_prior(m.p), (T, V), "data|model"),
}  # fmt: skip


def test_there_are_more_than_sixty() -> None:
    assert len(CASES) > 60


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_by_name(made: SimpleNamespace, name: str) -> None:
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message) as error:
        call(made)
    last = traceback.extract_tb(error.value.__traceback__)[-1].filename
    own = HERE in Path(last).parents
    # PyMC itself says when there is no model
    assert own or "pymc/model" in last, f"raised in {last}"


def test_the_posterior_still_works(made: SimpleNamespace) -> None:
    again = made.p.sample(task(), 100, refine=False, random_seed=0, progressbar=False)
    np.testing.assert_array_equal(
        again["posterior"]["b"].values, made.tree["posterior"]["b"].values
    )
