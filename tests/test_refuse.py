"""What is refused: each error names the variable and says what to do instead."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.model.transform.optimization import freeze_dims_and_data

from pmcl.compile import (
    Simulator,
    UnsupportedModelError,
    compile_model,
    finite_fraction,
    make_simulator,
    read_covariates,
)
from pmcl.compile.simulator import check_finite

ZEROS = np.zeros(4)


def discrete_free_variable() -> None:
    rate = pm.Poisson("rate", 3)
    pm.Normal("y", rate, 1, observed=ZEROS)


def boolean_free_variable() -> None:
    switch = pm.Bernoulli("switch", 0.3)
    pm.Normal("y", switch, 1, observed=ZEROS)


def without_gradient() -> None:
    @pytensor.wrap_jax
    def halved(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: (jnp.abs(v) > 1).any(), lambda v: v / 2, x)

    mu = pm.Normal("mu", shape=4)
    pm.Normal("other", mu, 1, observed=ZEROS)
    pm.Normal("y", halved(mu), 1, observed=ZEROS)


def indicators() -> None:
    k = pm.Categorical("k", [0.2, 0.3, 0.5], shape=4)
    pm.Normal("y", k, 1, observed=ZEROS)


def potential() -> None:
    mu = pm.Normal("mu")
    pm.Potential("soft_bound", -(mu**4))
    pm.Normal("y", mu, 1, observed=ZEROS)


def total_size() -> None:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=ZEROS, total_size=100)


def minibatch() -> None:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=pm.Minibatch(np.zeros(100), batch_size=4))


def minibatch_of_covariates() -> None:
    mu = pm.Normal("mu")
    x, y = pm.Minibatch(np.zeros(100), np.zeros(100), batch_size=4)
    pm.Normal("y", mu * x, 1, observed=y)


def density_only() -> None:
    mu = pm.Normal("mu")
    pm.CustomDist("y", mu, logp=lambda value, mu: -((value - mu) ** 2), observed=ZEROS)


def density_only_prior() -> None:
    mu = pm.CustomDist("mu", 0.0, logp=lambda value, mu: -((value - mu) ** 2))
    pm.Normal("y", mu, 1, observed=ZEROS)


def missing() -> None:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=[0.0, np.nan, 1.0])


def masked() -> None:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=np.ma.masked_less(np.array([0, -1, 1]), 0))


def nothing_observed() -> None:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1)


def nothing_free() -> None:
    pm.Normal("y", 0, 1, observed=ZEROS)


def improper() -> None:
    mu = pm.Flat("mu")
    pm.Normal("y", mu, 1, observed=ZEROS)


def spread_over_columns() -> None:
    pm.Normal("y", pm.Normal("mu", shape=4), 1, observed=np.zeros((4, 1)))


def transform_of_dims() -> None:
    import pymc.dims as pmd
    from pymc.dims.distributions.transforms import DimTransform

    class Own(DimTransform):
        name = "own"

        def forward(self, value, *inputs):  # noqa: ANN001, ANN202
            return value

        log_jac_det = backward = forward

    a = pmd.Normal("a", transform=Own(), dims="group")
    pmd.Normal("y", a, 1.0, observed=pmd.Data("x", ZEROS, dims="group"))


def part_of_a_random_vector() -> None:
    import pymc.dims as pmd

    pmd.Normal("a", dims="group")
    drawn = pmd.Normal.dist(0.0, 1.0, dim_lengths={"group": 4})
    value = pmd.Data("x", ZEROS, dims="group")
    pm.modelcontext(None).register_rv(pmd.math.exp(drawn), "y", observed=value, dims=("group",))


def vectors_along_the_first_dim() -> None:
    import pymc.dims as pmd

    a = pmd.Normal("a", dims="group")
    cov = pmd.as_xtensor(np.eye(4), dims=("group", "again"))
    value = pmd.Data("x", np.zeros((4, 2)), dims=("group", "day"))
    pmd.MvNormal("y", a, cov, core_dims=("group", "again"), observed=value, dims=("group", "day"))


def own_past() -> None:
    y = pm.Data("series", ZEROS)
    rho = pm.Normal("rho")
    pm.Normal("y", rho * pt.concatenate([[0.0], y[:-1]]), 1, observed=y)


def nameless_randomness() -> None:
    mu = pm.Normal("mu")
    pm.Normal("z", mu, 1, observed=ZEROS)
    pm.Deterministic("noisy", mu + pm.Normal.dist(0, 1))


RING = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
PAIRS = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])


def free_scale_of_icar() -> None:
    phi = pm.ICAR("phi", W=RING, sigma=pm.HalfNormal("sigma"))
    pm.Normal("y", phi, 1, observed=np.zeros(4))


def unconnected_places() -> None:
    pm.Normal("y", pm.ICAR("phi", W=PAIRS), 1, observed=np.zeros(4))


def conditional_places() -> None:
    phi = pm.CAR("phi", np.zeros(4), RING, 0.5, 1.3)
    pm.Normal("y", phi, 1, observed=np.zeros(4))


def no_jax_conversion() -> None:
    mu = pm.Normal("mu")
    pm.PolyaGamma("bump", 1.0, mu)
    pm.Normal("y", mu, 1, observed=ZEROS)


@pytest.mark.parametrize(
    ("build", "names", "way_out"),
    [
        (discrete_free_variable, "Free variable 'rate' is discrete", "Sum it out"),
        (
            discrete_free_variable,
            "Free variable 'rate'",
            "+ pm.logp(pm.Normal.dist(...), value).sum()",
        ),
        (boolean_free_variable, "Free variable 'switch'", "marginalize(model, ['switch'])"),
        (without_gradient, "density of 'y' cannot be differentiated twice", "of a fixed length"),
        (indicators, "Free variable 'k' is discrete", "pm.Mixture('y', w=p, comp_dists=["),
        (total_size, "'y' uses `total_size`", "Remove it"),
        (minibatch, "'y' depends on `pm.Minibatch`", "the whole of one dataset"),
        (minibatch_of_covariates, "'y' depends on `pm.Minibatch`", "the whole of one dataset"),
        (missing, "'y' has missing values in `observed`", "placeholder values"),
        (masked, "'y' has missing values in `observed`", "placeholder values"),
        (nothing_observed, "no observed variable", "Give the likelihood `observed=`"),
        (nothing_free, "no free variable", "nothing to infer"),
        (spread_over_columns, "'y': it has values of shape (4, 1)", "the same axes"),
        (transform_of_dims, "'a' of `pymc.dims` has the transform Own", "Leave `transform=` out"),
        (part_of_a_random_vector, "'y' is of `pymc.dims`, and made by", "Write it with `pm`"),
        (
            vectors_along_the_first_dim,
            "'y': expected the dims of one draw",
            "dims=('day', 'group')",
        ),
        (nameless_randomness, "'noisy'", "give it a name"),
        (free_scale_of_icar, "'phi' is a `pm.ICAR` whose `sigma`", "sigma * pm.ICAR('phi'"),
        (unconnected_places, "'phi' is a `pm.ICAR` of places", "each connected part"),
        (no_jax_conversion, "'bump' cannot be compiled to JAX", "another distribution"),
    ],
)
def test_refused(build: Callable[[], None], names: str, way_out: str) -> None:
    with (
        pm.Model(coords={"group": range(4), "day": range(2), "again": range(4)}) as model,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # PyMC's own, of imputation
        build()
    with pytest.raises(UnsupportedModelError) as error:
        compile_model(model)
    assert names in str(error.value) and way_out in str(error.value)


def simulator_of(build: Callable[[], None], backend: str = "auto") -> Simulator:
    with pm.Model() as model:
        build()
    compiled = compile_model(model)
    return make_simulator(compiled, read_covariates(None, ()), backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "names", "way_out"),
    [
        (potential, "Potential 'soft_bound'", "Write it as a distribution"),
        (density_only, "'y' is a `pm.CustomDist` with only `logp`", "Give it `random=`"),
        (density_only_prior, "'mu' is a `pm.CustomDist` with only `logp`", "Give it `random=`"),
        (improper, "'mu' has an improper prior", "a proper one"),
        (own_past, "`pm.Data` 'series' holds the observations of 'y'", "pm.AR"),
    ],
)
def test_has_a_density_and_cannot_be_simulated(
    build: Callable[[], None], names: str, way_out: str
) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        simulator_of(build)
    assert names in str(error.value) and way_out in str(error.value)
    assert "`pmcl.refine` and `pmcl.sample_reference` need no simulator" in str(error.value)


def test_what_pymc_draws_wrongly_is_not_drawn_by_pymc() -> None:
    assert simulator_of(conditional_places).backend == "jax"
    with pytest.raises(UnsupportedModelError, match="`pm.CAR` can only be simulated in JAX"):
        simulator_of(conditional_places, "pytensor")


def negative_scale() -> None:
    pm.Normal("mu")
    scale = pm.Normal("scale")  # half of its draws are no scale
    pm.Normal("y", 0, scale, observed=ZEROS)


def underflow() -> None:
    pm.Normal("mu")
    tiny = pm.Gamma("tiny", 0.001, 1)  # most of its draws round to zero
    pm.Normal("y", tiny, 1, observed=ZEROS)


def now_and_then() -> None:
    scale = pm.Normal("scale", 1.9, 1)  # negative at 3 %
    pm.Normal("y", 0, scale, observed=ZEROS)


def never() -> None:
    scale = pm.Normal("scale", -5, 0.1)
    pm.Normal("y", 0, scale, observed=ZEROS)


def test_simulations_without_a_finite_density_are_told() -> None:
    with pytest.warns(UserWarning, match="log likelihood of 'y'"):
        check_finite(simulator_of(negative_scale))
    assert finite_fraction(simulator_of(negative_scale)) == pytest.approx(0.5, abs=0.1)

    with pytest.warns(UserWarning, match=r"at \d\d\.\d% of 200 draws of.* log prior of 'tiny'"):
        check_finite(simulator_of(underflow, "pytensor"))

    with pytest.warns(UserWarning, match="log likelihood of 'y'"):
        check_finite(simulator_of(now_and_then), n=400)


def test_a_model_that_is_never_finite_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"at 100\.0% .* log likelihood of 'y'"):
        check_finite(simulator_of(never))


def test_invalid_parameters_on_the_host_are_explained() -> None:
    with pytest.raises(UnsupportedModelError, match=r"variable 'y' invalid.*\(scale < 0\)"):
        simulator_of(negative_scale, "pytensor").simulate(50, random_seed=0)


def test_data_that_were_frozen() -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") * pm.Data("x", ZEROS), 1, observed=ZEROS)
    with pytest.raises(ValueError, match="'x' is not a `pm.Data`.*before `freeze_dims_and_data`"):
        compile_model(freeze_dims_and_data(model), covariates=["x"])


def test_data_that_were_set_without_their_observations() -> None:
    n = len(ZEROS)
    with pm.Model(coords={"obs": range(n)}) as model:
        x = pm.Data("x", ZEROS, dims="obs")
        pm.Normal("y", pm.Normal("b") * x, 1, observed=ZEROS, dims="obs")
        pm.set_data({"x": np.ones(n + 2)}, coords={"obs": range(n + 2)})
    with pytest.raises(UnsupportedModelError, match="'y': what the model has for it.*`pm.Data`"):
        compile_model(model, covariates=["x"])


def more_terms() -> None:
    def density(value: pt.TensorVariable, mu: pt.TensorVariable) -> pt.TensorVariable:
        return pm.logp(pm.Normal.dist(mu, 1), pt.concatenate([value, value]))

    pm.CustomDist("y", pm.Normal("mu"), logp=density, observed=np.zeros(6))


def one_for_many() -> None:
    pm.Normal("y", pm.Normal("mu", shape=6), 1, observed=np.zeros(1))


@pytest.mark.parametrize("build", [more_terms, one_for_many])
def test_likelihoods_of_other_shapes_are_compiled(build: Callable[[], None]) -> None:
    with pm.Model() as model:
        build()
    assert compile_model(model).dim
