"""What is compiled: few programs at first, none later, and no more than a process holds."""

import gc
import io
import re
import warnings
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import level_models
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from rich.console import Console

import pmcl
from pmcl.runtime import jitting, precision
from pmcl.runtime.jitting import compiling, compiling_for, jit
from pmcl.runtime.progress import progress_bar

ROWS = 12
QUIET = {"progressbar": False}
NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=16, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=16),
)


class Programs:
    """Counts XLA's programs since it was last asked."""

    def __init__(self) -> None:
        self.names: list[str] = []
        jax.monitoring.register_event_duration_secs_listener(self.heard)

    def heard(self, event: str, seconds: float, **about: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.names.append(str(about.get("fun_name")))

    def new(self) -> list[str]:
        found, self.names = self.names, []
        return found


@pytest.fixture
def programs():
    found = Programs()
    yield found
    jax.monitoring.unregister_event_duration_listener(found.heard)


def regression(rows: int = ROWS) -> pm.Model:
    with pm.Model(coords={"obs": range(rows), "predictor": ["a", "b"]}) as model:
        x = pm.Data("X", np.zeros((rows, 2)), dims=("obs", "predictor"))
        beta = pm.Normal("beta", dims="predictor")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", x @ beta, sigma, observed=np.zeros(rows), dims="obs")
    return model


def data(n: int, seed: int = 0, rows: int = ROWS) -> dict[str, np.ndarray]:
    """Datasets of which some are far from the prior, so that refinement has work."""
    rng = np.random.default_rng([seed, n])
    x = rng.normal(size=(n, rows, 2)) * rng.choice([0.1, 1.0, 3.0], size=(n, 1, 1))
    return {"X": x, "y": x @ [1.0, -3.0] + rng.standard_t(3, size=(n, rows)) * 0.5}


def fitted(model: pm.Model) -> pmcl.AmortizedPosterior:
    sources = {"X": pm.Normal.dist(0, 1)}
    return pmcl.fit_amortized(
        model, covariates=sources, network=NETWORK, steps=30, random_seed=1, **QUIET
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_first_calls_compile_little_and_later_ones_nothing(programs):
    """A count that has to grow is raised here, with the reason in the commit."""
    model = regression()
    programs.new()
    posterior = fitted(model)
    first = {"fit": programs.new()}
    every = {"patience": None, **QUIET}  # all steps, however good the network is
    posterior = posterior.adapt(data(5), name="a", steps=30, random_seed=1, **every)
    first["adapt"] = programs.new()
    # all that refinement has, as if every dataset needed it
    everything = pmcl.Refine(enough=2.0, efficiency=2.0, steps=5, rounds=1, pilot=20, components=2)
    for refine in ("auto", everything):
        given = {"refine": refine, "fallback": None}
        idata = posterior.sample(data(5), 100, **given, random_seed=1, **QUIET)
    first["sample"] = programs.new()
    posterior.log_prob(idata, data(5))
    posterior.predict(data(5), draws=100, random_seed=1)
    # of forty some go to NUTS after hardly any refinement: a stage that is compiled when needed
    hardly = pmcl.Refine(enough=2.0, efficiency=2.0, steps=5, rounds=0, pilot=20)
    given_up = {"refine": hardly, "fallback": "nuts"}
    idata = posterior.sample(data(40, 1), 100, **given_up, random_seed=1, **QUIET)
    assert "nuts" in idata["dataset_stats"]["engine"]
    pmcl.refine(model, data(5), draws=100, refine=everything, random_seed=1, **QUIET)
    pmcl.sample_reference(model, data(2), draws=50, tune=100, random_seed=1, **QUIET)
    first["others"] = programs.new()
    # four of `fit` are once a process: in the whole suite another test has compiled them
    most = {"fit": 30, "adapt": 8, "sample": 14, "others": 13}
    assert {k: len(v) for k, v in first.items() if len(v) > most[k]} == {}, first

    # "auto" may need a stage that it never needed before
    for n, seed in ((5, 2), (1, 1), (3, 1), (40, 1)):
        idata = posterior.sample(data(n, seed), 100, **given, random_seed=seed, **QUIET)
        posterior.log_prob(idata, data(n, seed))
        posterior.predict(data(n, seed), draws=100, refine=everything, random_seed=seed)
        assert programs.new() == []
    pmcl.refine(model, data(2, 2), draws=100, refine=everything, random_seed=2, **QUIET)
    posterior.sample(data(300), 100, refine=False, random_seed=3, **QUIET)
    pmcl.sample_reference(model, data(3), draws=60, tune=90, random_seed=2, **QUIET)
    assert programs.new() == []
    for n, steps in ((1, 25), (90, 5)):
        posterior = posterior.adapt(data(n, 3), name=str(n), steps=steps, **every)
        assert programs.new() == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lengths_that_are_near_are_compiled_once(programs):
    compiled = pmcl.compile_model(regression(), covariates=["X"])
    aligned = {"draws": 50, "refine": pmcl.Refine(steps=0, rounds=0), "random_seed": 1, **QUIET}
    aligned["fallback"] = None  # NUTS is compiled by Numba, which is not counted here
    pmcl.refine(compiled, data(2, rows=29), **aligned)
    programs.new()
    for rows in (25, 30, 32):
        pmcl.refine(compiled, data(2, rows=rows), **aligned)
    parts = {str(n): {k: v[0] for k, v in data(1, rows=n).items()} for n in (17, 26, 31)}
    pmcl.refine(compiled, parts, **aligned)
    assert programs.new() == []
    pmcl.refine(compiled, data(2, rows=33), **aligned)
    assert programs.new() != []  # the count does see a compilation


# --- compiled models ------------------------------------------------------------------------------


def test_a_model_is_compiled_once_as_long_as_it_does_not_change():
    model = regression()
    first = pmcl.compile_model(model, covariates=["X"])
    again = pmcl.compile_model(model, covariates=["X"])
    assert first == again and hash(first) == hash(again) and again.model is model
    constant = pmcl.compile_model(model)
    assert constant != first
    with model:
        pm.set_data({"X": np.ones((ROWS, 2))})
    assert pmcl.compile_model(model, covariates=["X"]) == first  # whose values are not the model's
    changed = pmcl.compile_model(model)
    assert changed != constant
    with precision.scope():
        z, y = np.array([1.0, 2.0, 0.0]), {"y": np.zeros(ROWS)}
        assert float(constant.log_likelihood(z, y)) != float(changed.log_likelihood(z, y))
    with model:
        pm.Normal("more")
    assert pmcl.compile_model(model, covariates=["X"]) != first


def test_nothing_is_kept_of_a_model_that_is_gone():
    model = regression()
    pmcl.compile_model(model, covariates=["X"])
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# --- compiled functions ---------------------------------------------------------------------------


def test_arrays_are_traced_and_all_else_is_static():
    traced = []

    @jit
    def function(tree, factor, name="x"):
        traced.append((factor, name))
        return {"sum": tree["a"] * factor + tree["b"], "name": name, "double": max}

    tree = {"a": np.arange(3.0), "b": np.float32(1)}
    found = function(tree, 2)
    np.testing.assert_allclose(found["sum"], [1, 3, 5])
    assert found["name"] == "x" and found["double"] is max
    function({"a": jnp.ones(3), "b": np.float32(7)}, 2)
    assert traced == [(2, "x")]
    function(tree, 3), function(tree, 3, name="y"), function(tree, True), function(tree, 1)
    assert traced[1:] == [(3, "x"), (3, "y"), (True, "x"), (1, "x")]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="memory maps are counted on Linux")
def test_the_oldest_functions_are_forgotten_where_there_are_many_maps(monkeypatch):
    traced = []

    @jit
    def function(x, number):
        traced.append(number)
        return x + number

    monkeypatch.setattr(jitting, "_functions", type(jitting._functions)())
    with precision.scope():
        for number in range(8):
            function(np.ones(3), number)
        function(np.ones(3), 0)  # used again: no longer the oldest
        monkeypatch.setattr(jitting, "_left", [0])
        held = iter([10, 10, 10, 1, 1, 1])
        monkeypatch.setattr(jitting, "_maps", lambda: next(held))
        jitting.forget_oldest(5)
        assert len(jitting._functions) == 4
        monkeypatch.setattr(jitting, "_maps", lambda: 0)
        traced.clear()
        np.testing.assert_allclose(function(np.ones(3), 0), 1)
        np.testing.assert_allclose(function(np.ones(3), 7), 8)
        assert traced == []
        np.testing.assert_allclose(function(np.ones(3), 1), 2)
        assert traced == [1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="memory maps are counted on Linux")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_process_may_work_with_forty_models(tmp_path):
    """Without the tests' limits: what a user's process does."""
    counts = []
    for i in range(40):
        model = regression(ROWS + i)
        posterior = fitted(model)
        posterior = posterior.adapt(data(3, rows=ROWS + i), name="a", steps=25, **QUIET)
        tree = posterior.sample(data(3, rows=ROWS + i), 100, random_seed=1, **QUIET)
        assert np.isfinite(tree["posterior"]["beta"]).all()
        counts.append(jitting._maps())
    assert max(counts) < 45_000


# --- what is shown --------------------------------------------------------------------------------


@pytest.mark.parametrize("note", ["", "loss -12345.678 (new -12345.678)", "a" * 200])
def test_progress_stays_on_one_line_and_says_what_is_compiled(note):
    def shown(width: int) -> list[str]:
        file = io.StringIO()
        console = Console(file=file, width=width, force_terminal=True, color_system=None)
        name = "Adapting to a task with quite a long name"
        with progress_bar(name, 12_000, enabled=True, console=console) as bar:
            bar.advance(1234, note)
        plain = re.sub(r"\x1b\[\S+?[a-zA-Z]", "", file.getvalue())
        return re.split("[\r\n]", plain)

    assert compiling_for() is None
    lines = shown(80)
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert any("1234/12000" in line and "Adapting" in line for line in lines)
    with compiling():
        assert compiling_for() >= 0
        assert any("compiling, once" in line and "1234/12000" in line for line in shown(80))
    assert compiling_for() is None


def test_a_function_says_that_it_is_compiled_while_it_is():
    seen = []

    @jit
    def function(x):
        seen.append(compiling_for())
        return x

    function(np.ones(2)), function(np.ones(2))
    assert len(seen) == 1 and seen[0] >= 0 and compiling_for() is None

    @jit
    def broken(x):
        raise ValueError("no")

    with warnings.catch_warnings(), pytest.raises(ValueError, match="no"):
        broken(np.ones(2))
    assert compiling_for() is None


def test_a_multilevel_model_is_compiled_once(programs):
    """Any number of datasets, whose rows belong to other groups, and another seed."""
    model = level_models.counties()
    rng = np.random.default_rng(0)

    def data(n: int, seed: int) -> None:
        county = rng.integers(0, 6, (n, 10))
        y = {"y": rng.normal(size=(n, 10)), "in_county": county}
        y["uranium"] = rng.normal(size=(n, 6))
        tree = pmcl.refine(model, y, draws=200 * seed, random_seed=seed, **QUIET)
        assert str(tree["posterior"].attrs["levels"]).startswith("levels: 6 groups")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data(1, 1)
        assert len(programs.new()) > 3
        data(5, 2)
        assert programs.new() == []


def test_a_second_stream_of_a_model_compiles_nothing(programs):
    """Of a network, whose rows are tested for being apart, with other rows and another seed."""
    with pm.Model(coords={"row": range(1)}) as model:
        x = pm.Data("X", np.zeros((1, 2)), dims=("row", "p"))
        w = pm.Normal("w", 0, 1, shape=(2, 3))
        v = pm.Normal("v", 0, 1, shape=3)
        pm.Normal("y", pt.tanh(x @ w) @ v, 0.5, observed=np.zeros(1), dims="row")
    rng = np.random.default_rng(0)
    for settings in ({"search": pmcl.Search(steps=20)}, {"family": "full"}):
        for seed in range(2):
            stream = pmcl.fit_online(model, random_seed=seed, progressbar=False, **settings)
            for _ in range(3):
                rows = {"X": rng.normal(size=(8, 2)), "y": rng.normal(size=8)}
                stream = stream.update(rows, progressbar=False)
            stream.log_predictive(rows, random_seed=seed)
            assert (programs.new() == []) == bool(seed)
