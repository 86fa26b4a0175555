"""NUTS of many datasets: against closed forms, and against models built for one dataset alone."""

import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats
from pytensor.compile.mode import Mode
from scipy.special import polygamma, psi

from pmcl.reference.checks import check_datasets
from pmcl.reference.nuts import NutsDraws, NutsSettings, nuts
from pmcl.reference.shared_model import share_data

# Python's linker compiles in no time, and these functions are called a few times only
PLAIN = Mode(linker="py", optimizer="fast_compile")


def conjugate(data) -> pm.Model:
    """Four independent blocks, each with a posterior in closed form."""
    rows = range(len(data["y"]))
    with pm.Model(coords={"row": rows, "predictor": ["a", "b"]}) as model:
        X = pm.Data("X", data["X"], dims=("row", "predictor"))
        y = pm.Data("y_values", data["y"], dims="row")
        beta = pm.Normal("beta", 0, 2, dims="predictor", initval=[0.1, -0.1])
        p = pm.Beta("p", 2, 3)
        w = pm.Dirichlet("w", np.array([1.0, 2.0, 3.0]))
        m = pm.Normal("m", 1, 3)
        # a sum, as Numba takes a minute to compile its first matrix product on a machine
        mean = pm.Deterministic("mean", (X * beta).sum(-1), dims="row")
        pm.Normal("t", m, 0.5, observed=data["t"])
        pm.Multinomial("kinds", n=4, p=w, observed=data["kinds"])
        pm.Bernoulli("k", p, observed=data["k"])
        pm.Normal("y", mean, 1.5, observed=y, dims="row")
    return model


def draw_data(seed: int, rows: int, others: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 2))
    return {
        "X": X,
        "y": X @ [1.0, -2.0] + 1.5 * rng.normal(size=rows),
        "t": rng.normal(2, 0.5, size=others),
        "kinds": rng.multinomial(4, [0.2, 0.3, 0.5], size=others + 2),
        "k": rng.integers(2, size=others + 3).astype(bool),
    }


DATASETS = [draw_data(0, 8, 5), draw_data(1, 30, 21), draw_data(2, 8, 5)]
NAMES = ["small", "large", "third"]


def state(model: pm.Model):
    """What a user could see change in a model."""
    return (
        {data.name: data.get_value() for data in model.data_vars},
        {name: int(length.eval(mode=PLAIN)) for name, length in model.dim_lengths.items()},
        dict(model.coords),
        dict(model.named_vars),
        dict(model.named_vars_to_dims),
        {rv: model.rvs_to_values[rv] for rv in model.basic_RVs},
        {rv.name: str(value) for rv, value in model.rvs_to_initial_values.items()},
    )


@pytest.fixture(scope="module")
def user_model() -> pm.Model:
    return conjugate(draw_data(3, 4, 6))


@pytest.fixture(scope="module", params=["nutpie", pytest.param("pymc", marks=pytest.mark.slow)])
def sampled(request, user_model) -> NutsDraws:
    before = state(user_model)
    settings = NutsSettings(draws=1000, tune=500, chains=2)
    if request.param == "pymc":
        settings = NutsSettings(draws=300, tune=250, chains=2, sampler="pymc")
    result = nuts(
        user_model, DATASETS, names=NAMES, settings=settings, random_seed=4, progressbar=False
    )
    np.testing.assert_equal(state(user_model), before)
    return result


def split(model: pm.Model, z: np.ndarray) -> dict[str, np.ndarray]:
    """Value variables, by name, of z (..., dim)."""
    # order by PyMC's definition, shapes by evaluation
    point = model.initial_point()
    shapes = {value.name: point[value.name].shape for value in model.value_vars}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(z, ends[:-1], axis=-1)
    return {
        name: part.reshape((*z.shape[:-1], *shape))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def assert_mean_sd(draws: np.ndarray, mean: float, sd: float) -> None:
    """Compare draws (chain, draw) with a mean and an sd, within five Monte Carlo errors."""
    ess = array_stats.ess(draws, chain_axis=0, draw_axis=1)
    assert ess > 100
    assert abs(draws.mean() - mean) < 5 * sd / np.sqrt(ess)
    square = (draws - mean) ** 2
    error = square.std() / np.sqrt(array_stats.ess(square, chain_axis=0, draw_axis=1))
    assert abs(square.mean() - sd**2) < 5 * error


@pytest.mark.parametrize("i", range(3), ids=NAMES)
def test_posteriors_in_closed_form(user_model, sampled, i):
    data = DATASETS[i]
    z = split(user_model, sampled.unconstrained[i])

    precision = 1 / 3**2 + len(data["t"]) / 0.5**2
    mean = (1 / 3**2 + data["t"].sum() / 0.5**2) / precision
    assert_mean_sd(z["m"], mean, precision**-0.5)

    # p ~ Beta(a, b): the mean of its logit is psi(a) - psi(b), the variance psi'(a) + psi'(b)
    a, b = 2 + data["k"].sum(), 3 + (~data["k"]).sum()
    assert_mean_sd(z["p_logodds__"], psi(a) - psi(b), np.sqrt(polygamma(1, a) + polygamma(1, b)))

    concentration = np.array([1.0, 2.0, 3.0]) + data["kinds"].sum(axis=0)
    expected = concentration / concentration.sum()
    w = user_model.rvs_to_transforms[user_model["w"]].backward(z["w_simplex__"])
    w = w.eval(mode=PLAIN)
    assert w.shape[-1] == 3
    for j in range(3):
        sd = np.sqrt(expected[j] * (1 - expected[j]) / (concentration.sum() + 1))
        assert_mean_sd(w[..., j], expected[j], sd)

    covariance = np.linalg.inv(np.eye(2) / 2**2 + data["X"].T @ data["X"] / 1.5**2)
    mean = covariance @ data["X"].T @ data["y"] / 1.5**2
    for j in range(2):
        assert_mean_sd(z["beta"][..., j], mean[j], np.sqrt(covariance[j, j]))


@pytest.mark.parametrize("i", range(3), ids=NAMES)
def test_z_is_in_the_order_of_the_models_value_variables(user_model, sampled, i):
    # a model that holds this dataset from the start, so that nothing of the rebuilding is in it
    logp = conjugate(DATASETS[i]).compile_logp(mode=PLAIN)
    for chain, draw in [(0, 0), (0, 17), (1, 3), (1, -1)]:
        point = split(user_model, sampled.unconstrained[i, chain, draw])
        np.testing.assert_allclose(logp(point), sampled.stats["lp"][i, chain, draw], rtol=1e-9)


def test_shapes_and_statistics(sampled):
    datasets, chains, draws, dim = sampled.unconstrained.shape
    assert (datasets, chains, dim) == (3, 2, 2 + 1 + 2 + 1)
    assert sampled.unconstrained.dtype == np.float64
    assert {"lp", "diverging", "n_steps", "step_size", "tree_depth"} <= sampled.stats.keys()
    for values in sampled.stats.values():
        assert values.shape == (3, chains, draws)
    assert sampled.stats["diverging"].dtype == bool
    assert sampled.stats["n_steps"].min() >= 1
    assert sampled.seconds.shape == (3,) and sampled.compile_seconds > 0
    # the last dataset is like the first in shape: only its data can make its draws differ
    assert not np.allclose(
        sampled.unconstrained[0].mean((0, 1)), sampled.unconstrained[2].mean((0, 1))
    )


def test_the_same_seed_gives_the_same_draws_whatever_the_cores():
    datasets = [{"y": np.arange(4.0)}] * 2
    options = {"names": ["a", "b"], "random_seed": 5, "progressbar": False}
    settings = NutsSettings(draws=20, tune=50, chains=2)
    model = build(normal, np.zeros(3))
    one, two = (
        nuts(model, datasets, settings=settings._replace(cores=cores), **options).unconstrained
        for cores in (1, 2)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one[0], one[1])  # another dataset has another seed


def test_a_failure_names_the_dataset():
    with pm.Model() as model:
        pm.Bernoulli("y", pm.Beta("p", 1, 1), observed=np.zeros(4, int))
    before = state(model)
    datasets = [{"y": np.array([0, 1, 1, 0])}, {"y": np.array([0, 1, 2])}]
    with pytest.raises(RuntimeError, match="failed on dataset 'impossible'"):
        nuts(
            model, datasets, names=["possible", "impossible"], settings=NutsSettings(5, 5),
            random_seed=1, progressbar=False,
        )  # fmt: skip
    np.testing.assert_equal(state(model), before)


# --- one rebuilt model against a model built for the dataset -----------------------------------


def normal(y):
    pm.Normal("y", pm.Normal("m"), pm.HalfNormal("s"), observed=y)


def mixture(y):
    w = pm.Dirichlet("w", np.ones(2))
    pm.NormalMixture("y", w, pm.Normal("m", shape=2), 1, observed=y)


def truncated(y):
    pm.Truncated("y", pm.StudentT.dist(nu=3, mu=pm.Normal("m"), sigma=1), -9, 9, observed=y)


def censored(y):
    pm.Censored("y", pm.Normal.dist(pm.Normal("m"), 1), -1, 1, observed=np.clip(y, -1, 1))


def custom(y):
    def dist(m, size):
        return pm.Normal.dist(m, 1, size=size) * 2

    pm.CustomDist("y", pm.Normal("m"), dist=dist, observed=y)


def autoregressive(y):
    start = pm.Normal.dist()
    pm.AR("y", pm.Normal("m", shape=2), sigma=1.0, init_dist=start, observed=y)


def random_walk(y):
    pm.modelcontext(None).add_coord("time", range(len(y)))
    start = pm.Normal.dist()
    pm.GaussianRandomWalk("y", pm.Normal("m"), 1, init_dist=start, observed=y, dims="time")


def multivariate(y):
    y = np.stack([y, y**2, -y], axis=-1)
    pm.MvNormal("y", pm.Normal("m", shape=3), np.eye(3), observed=y)


def ordered_counts(y):
    cuts = pm.Normal(
        "cuts", np.arange(2.0), 1, shape=2, transform=pm.distributions.transforms.ordered
    )
    pm.OrderedLogistic("y", eta=0.0, cutpoints=cuts, observed=(y > 0).astype(int))


def observed_feeds_observed(y):
    first = pm.Normal("first", pm.Normal("m"), 1, observed=y)
    pm.Poisson("y", pm.math.exp(first), observed=np.ones(len(y), int))


def float_data_of_an_integer_variable(y):
    values = pm.Data("values", np.abs(np.round(y)))
    # the pm.Data is also a covariate, and gives the size: it has to follow the observations
    pm.Poisson("y", pm.math.exp(pm.Normal("m") + values.mean()), observed=values)


def initial_values_and_data_in_priors(y):
    scale = pm.Data("scale", np.array(2.0))
    m = pm.Normal("m", y.sum(), scale, initval="prior")
    pm.Normal("y", m, pm.HalfNormal("s", initval=scale + 1.0), observed=y)
    pm.Potential("pull", -(m**2))


BUILDERS = [
    normal, mixture, truncated, censored, custom, autoregressive, random_walk, multivariate,
    ordered_counts, observed_feeds_observed, float_data_of_an_integer_variable,
]  # fmt: skip


def build(builder, y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        builder(y)
    return model


@pytest.mark.parametrize("builder", BUILDERS)
def test_rebuilt_model_has_the_density_of_a_model_of_that_dataset(builder):
    rng = np.random.default_rng(6)
    ys = [rng.normal(size=n) for n in (5, 11)]
    models = [build(builder, y) for y in ys]
    datasets = [
        {
            rv.name: model.rvs_to_values[rv].eval(mode=PLAIN)
            for rv in model.observed_RVs
        }
        for model in models
    ]  # fmt: skip
    checked = check_datasets(models[0], datasets, ["short", "long"])
    shared = share_data(models[0], checked.arrays)
    logp = shared.model.compile_logp(mode=PLAIN)
    start = {k: v + rng.normal(size=v.shape) / 3 for k, v in models[0].initial_point().items()}
    for i in (1, 0):
        shared.set(checked.arrays[i], checked.lengths[i])
        expected = models[i].compile_logp(mode=PLAIN)(start)
        np.testing.assert_allclose(logp(start), expected, rtol=1e-10)


def test_initial_values_and_data_in_priors_are_kept():
    model = build(initial_values_and_data_in_priors, np.array([1.0, 2.0]))
    before = state(model)
    dataset = {"y": np.array([1.0, 2.0]), "scale": np.array(3.0)}
    checked = check_datasets(model, [dataset], ["only"])
    shared = share_data(model, checked.arrays)
    np.testing.assert_equal(state(model), before)
    shared.set(checked.arrays[0], checked.lengths[0])
    np.testing.assert_equal(state(model), before)
    assert shared.free_depend_on_data(checked.arrays[0], checked.lengths[0])
    np.testing.assert_allclose(shared.model.initial_point()["s_log__"], np.log(3.0))
    with model:
        pm.set_data({"scale": 3.0})
    point = {"m": 0.3, "s_log__": -0.2}
    np.testing.assert_allclose(
        shared.model.compile_logp(mode=PLAIN)(point), model.compile_logp(mode=PLAIN)(point)
    )


@pytest.mark.parametrize("builder", [normal, mixture, censored, multivariate, ordered_counts])
def test_missing_values_leave_the_density_of_those_that_are_there(builder):
    y = np.random.default_rng(3).normal(size=6)
    whole = build(builder, y)
    (rv,) = whole.observed_RVs
    data = np.asarray(whole.rvs_to_values[rv].eval(mode=PLAIN), float)
    gone = np.array([1, 4])
    gaps, kept = data.copy(), np.delete(np.arange(6), gone)
    gaps[gone] = np.nan
    checked = check_datasets(whole, [{rv.name: data}, {rv.name: gaps}], ["whole", "gaps"])
    shared = share_data(whole, checked.arrays)
    alone = build(builder, y[kept])
    logp, logp_alone, logp_whole = (
        m.compile_logp(mode=PLAIN) for m in (shared.model, alone, whole)
    )
    for seed in range(3):
        start = np.random.default_rng(seed)
        at = {k: start.normal(size=np.shape(v)) for k, v in whole.initial_point().items()}
        shared.set(checked.arrays[0], checked.lengths[0])
        np.testing.assert_allclose(logp(at), logp_whole(at), rtol=1e-10)
        shared.set(checked.arrays[1], checked.lengths[1])
        np.testing.assert_allclose(logp(at), logp_alone(at), rtol=1e-10)


# --- what is refused ---------------------------------------------------------------------------


def small_with(**changes):
    return {**DATASETS[0], **changes}


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({k: v for k, v in DATASETS[0].items() if k != "t"}, "'bad' lacks 't'"),
        ({k: v for k, v in DATASETS[0].items() if k != "X"}, "'bad' lacks 'X'.*other datasets"),
        (small_with(u=np.zeros(3)), r"'bad' has 'u'.*\['X'\]"),
        (small_with(beta=np.zeros(2)), "'bad' has 'beta'"),
        (small_with(y_values=np.zeros(8)), "'y_values'.*values of 'y'"),
        (small_with(k=np.array([0.5, 1.0])), "'k' of dataset 'bad'.*whole numbers"),
        (
            small_with(X=np.where(DATASETS[0]["X"] > 9, 0, np.nan)),
            r"'X' of dataset 'bad' has \d+ NaN. A covariate",
        ),
        (small_with(t=np.ma.masked_invalid([0.0, np.nan])), "'t' of dataset 'bad' has masked"),
        (small_with(t=np.array(["a"])), "'t' of dataset 'bad': expected dtype float64"),
        (small_with(t=np.zeros((1, 5))), r"'t' of dataset 'bad': expected 1 dim.*\(1, 5\)"),
        (small_with(y=np.zeros(9)), "'bad'.*dim 'row', which has length .*'y'.*'X'"),
    ],
)
def test_a_dataset_that_does_not_fit(user_model, dataset, message):
    before = state(user_model)
    with pytest.raises(ValueError, match=message):
        nuts(user_model, [DATASETS[0], dataset], names=["good", "bad"], random_seed=1)
    np.testing.assert_equal(state(user_model), before)


def fixed_by_a_free_variable():
    pm.Normal("y", pm.Normal("m", shape=4), 1, observed=np.zeros(4))


def fixed_by_a_constant():
    pm.Normal("y", pm.Normal("m") + pm.Data("offset", np.zeros(4)), 1, observed=np.zeros(4))


def fixed_by_a_walk():
    start = pm.Normal.dist()
    pm.GaussianRandomWalk("y", pm.Normal("m"), 1, init_dist=start, observed=np.zeros(4))


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (fixed_by_a_free_variable, r"dataset 'six' with shapes {'y': \(6,\)}.*named dims"),
        (fixed_by_a_constant, r"dataset 'six' with shapes {'y': \(6,\)}.*pm.Data"),
        (fixed_by_a_walk, r"'y' has length 4 along axis 0.*shape \(6,\)"),
    ],
)
def test_a_length_fixed_in_the_model(builder, message):
    with pm.Model() as model:
        builder()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        datasets = [{"y": np.zeros(4)}, {"y": np.zeros(6)}]
        nuts(model, datasets, names=["four", "six"], random_seed=1)
    np.testing.assert_equal(state(model), before)


def test_a_free_variable_that_would_change_size():
    with pm.Model(coords={"obs": range(4)}) as model:
        pm.Normal("y", pm.Normal("local", dims="obs"), 1, observed=np.zeros(4), dims="obs")
    datasets = [{"y": np.zeros(5)}, {"y": np.zeros(6)}]
    with pytest.raises(ValueError, match=r"'local' has shape \(6,\) for dataset 'six'"):
        nuts(model, datasets, names=["five", "six"], random_seed=1)


def test_models_without_a_posterior_and_arguments_out_of_range(user_model):
    with pm.Model() as discrete:
        pm.Normal("y", pm.Poisson("n", 3), 1, observed=0.0)
    with pm.Model() as unobserved:
        pm.Normal("m")
    with pytest.raises(ValueError, match=r"\['n'\] are discrete"):
        nuts(discrete, [{"y": 0.0}], names=["a"], random_seed=1)
    with pytest.raises(ValueError, match="no observed variable"):
        nuts(unobserved, [{}], names=["a"], random_seed=1)
    with pytest.raises(ValueError, match="one name for every dataset, got 1 for 3"):
        nuts(user_model, DATASETS, names=["a"], random_seed=1)
    with pytest.raises(ValueError, match="draws >= 1, got 0"):
        nuts(user_model, DATASETS, names=NAMES, settings=NutsSettings(draws=0), random_seed=1)
    with pytest.raises(ValueError, match="'stan'"):
        nuts(user_model, DATASETS, names=NAMES, settings=NutsSettings(sampler="stan"))
