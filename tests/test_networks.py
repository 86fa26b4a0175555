"""Summary networks, flows and their precision: symmetries, Jacobians and quadrature."""

import subprocess
import sys
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

from pmcl.compile import Mask, VariableInfo, compile_model, make_simulator, read_covariates
from pmcl.networks import (
    AbstractFlow,
    AbstractSummary,
    AbstractSummaryNetwork,
    Amortizer,
    CouplingFlow,
    DeepSet,
    Flatten,
    InputLayout,
    MaskedAutoregressiveFlow,
    Network,
    Recurrent,
    Scaling,
    SetTransformer,
    Structure,
    build_amortizer,
    default_network,
    read_structure,
)
from pmcl.networks.amortizer import Context, _tame, _untame
from pmcl.networks.summary import _AttentionBlock
from pmcl.runtime import precision

KEY = jax.random.key(3)
RNG = np.random.default_rng(3)

SETS = {
    "DeepSet": DeepSet(outputs=3, width=8, depth=1, pooled=4, head_width=16),
    "DeepSet of waves": DeepSet(
        outputs=3, width=8, depth=1, pooled=4, head_width=16, frequencies=2
    ),
    "SetTransformer": SetTransformer(outputs=3, width=8, heads=2, hidden=8, blocks=1, inducing=3),
}
SEQUENCES = {
    "GRU": Recurrent(outputs=3, state=6, width=8),
    "LSTM": Recurrent(outputs=3, cell="lstm", state=6, width=8),
}
FLOWS = {
    "coupling": CouplingFlow(layers=2, width=8, depth=1, knots=4, affine=False),
    "coupling and affine": CouplingFlow(layers=2, width=8, depth=1, knots=4),
    "autoregressive": MaskedAutoregressiveFlow(layers=2, width=8, depth=1, knots=4),
}


def each(specifications):
    return pytest.mark.parametrize("spec", [*specifications.values()], ids=[*specifications])


def shaken[T](tree: T, scale: float = 0.3) -> T:
    """Move weights away from their start, where a flow is nearly the identity."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    rng = np.random.default_rng(8)
    moved = [
        jnp.asarray(x + scale * rng.normal(size=x.shape), x.dtype) for x in map(np.asarray, leaves)
    ]
    return eqx.combine(jax.tree.unflatten(structure, moved), rest)


@lru_cache
def built(spec: AbstractSummary) -> AbstractSummaryNetwork:
    with precision.network_scope():  # as build_amortizer does, whatever the process's flag says
        return shaken(spec.build(2, key=KEY))


# --- summary networks -------------------------------------------------------------------------


@eqx.filter_jit
def _summary(network, rows, mask):
    return network(rows, mask)


def summarise(spec: AbstractSummary, rows: np.ndarray, mask: np.ndarray | None = None):
    """Summary of rows (n, 2)."""
    return np.asarray(_summary(built(spec), jnp.asarray(rows, jnp.float32), mask))


def assert_same(a, b) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


ROWS = RNG.normal(size=(7, 2))
GARBAGE = np.concatenate([ROWS, 50 * RNG.normal(size=(4, 2))])
REAL = np.arange(11) < 7


@each(SETS)
def test_order_of_a_sets_rows_does_not_matter(spec):
    value = summarise(spec, ROWS)
    assert value.shape == (3,)
    assert_same(value, summarise(spec, ROWS[RNG.permutation(7)]))
    changed = ROWS.copy()
    changed[2, 1] += 1
    assert np.abs(summarise(spec, changed) - value).max() > 1e-3


@each(SETS | SEQUENCES)
def test_padding_changes_nothing(spec):
    alone = summarise(spec, ROWS)
    assert_same(alone, summarise(spec, GARBAGE, REAL))
    if spec in SETS.values():  # and may stand anywhere
        order = RNG.permutation(11)
        assert_same(alone, summarise(spec, GARBAGE[order], REAL[order]))
    # the same rows, none of them padding
    assert np.abs(summarise(spec, GARBAGE, np.ones(11, bool)) - alone).max() > 1e-3


@each(SEQUENCES)
def test_order_of_a_sequence_matters(spec):
    value = summarise(spec, ROWS)
    assert value.shape == (3,)
    assert np.abs(value - summarise(spec, ROWS[::-1])).max() > 1e-3


def test_recurrent_refuses_an_unknown_cell():
    with pytest.raises(ValueError, match="'gru' or 'lstm', got 'rnn'"):
        Recurrent(cell="rnn").build(2, key=KEY)


def test_flatten_hands_on_every_value():
    found = Flatten().build(2, key=KEY)(jnp.asarray(ROWS), None)
    np.testing.assert_array_equal(found, jnp.asarray(ROWS).ravel())


# --- flows ------------------------------------------------------------------------------------


@lru_cache
def amortizer(flow: AbstractFlow, dim: int) -> Amortizer:
    """Build an amortizer of three fixed inputs; the context is those three numbers."""
    inputs = InputLayout.of((VariableInfo("x", ("x_dim_0",), (3,), "float64"),), None)
    z = 3 + 2 * np.random.default_rng(1).normal(size=(50, dim))
    with jax.enable_x64(True):  # as PyTensor's JAX backend leaves it
        q = build_amortizer(Network(DeepSet(), flow), inputs, z, {"x": z[:, [0] * 3]}, key=KEY)
    return eqx.tree_at(lambda a: a.flow, q, shaken(q.flow, 0.15))


CONTEXT = Context(np.asarray([0.3, -1.0, 2.0], np.float32), None)
CHUNK = 4096


@eqx.filter_jit
def _transform(q: Amortizer, eps, context):
    return jax.vmap(q.transform, in_axes=(0, None))(eps, context)


@eqx.filter_jit
def _jacobian(q: Amortizer, eps, context):
    return jax.vmap(jax.jacfwd(lambda e: q.transform(e, context)[0]))(eps)


@eqx.filter_jit
def _log_prob(q: Amortizer, z, context):
    """log q, and the base draws that the points come from."""

    def one(z):
        u = (z - q.z_scaling.loc) / q.z_scaling.scale
        return q.log_prob(z, context), q.flow.inverse(_untame(u)[0], context.vector)

    return jax.vmap(one)(z)


def draws(q: Amortizer, context: Context = CONTEXT):
    eps = np.random.default_rng(2).normal(size=(CHUNK, q.dim)).astype(np.float32)
    return (eps, *map(np.asarray, _transform(q, eps, context)))


def density(q: Amortizer, z: np.ndarray) -> np.ndarray:
    """Density at points (n, dim), a chunk at a time: one compilation."""
    filled = np.zeros((-(-len(z) // CHUNK) * CHUNK, q.dim), np.float32)
    filled[: len(z)] = z
    parts = [_log_prob(q, part, CONTEXT)[0] for part in filled.reshape(-1, CHUNK, q.dim)]
    return np.exp(np.concatenate(parts).astype(float))[: len(z)]


def each_flow(*cases: tuple[str, int]):
    """Pick some flows, each at some number of dims: compiling them is what takes the time."""
    return pytest.mark.parametrize(
        ("spec", "dim"),
        [(FLOWS[name], dim) for name, dim in cases],
        ids=[f"{name} {dim}" for name, dim in cases],
    )


ONE = (("coupling and affine", 1), ("autoregressive", 1))
TWO = (("coupling", 2), ("autoregressive", 2))
FIVE = (("coupling and affine", 5),)


@each_flow(*ONE, *TWO, *FIVE)
def test_transform_and_log_prob_are_inverse(spec, dim):
    q = amortizer(spec, dim)
    eps, z, log_q = draws(q)
    log_prob, back = _log_prob(q, z, CONTEXT)
    np.testing.assert_allclose(log_prob, log_q, atol=2e-3)
    np.testing.assert_allclose(back, eps, atol=2e-3)
    # the context steers it
    assert np.abs(draws(q, CONTEXT._replace(vector=CONTEXT.vector + 1))[1] - z).max() > 0.05


@each_flow(*TWO, *FIVE)
def test_log_det_is_that_of_all_partial_derivatives(spec, dim):
    q = amortizer(spec, dim)
    eps, _, log_q = (x[:200] for x in draws(q))
    log_det = np.linalg.slogdet(np.asarray(_jacobian(q, eps, CONTEXT), float))[1]
    base = -0.5 * (eps.astype(float) ** 2).sum(axis=1) - 0.5 * dim * np.log(2 * np.pi)
    np.testing.assert_allclose(log_q, base - log_det, atol=1e-3)
    assert np.abs(log_det - log_det.mean()).max() > 0.05  # it bends, and does not only scale


@each_flow(*ONE)
def test_density_integrates_to_one_in_one_dim(spec, dim):
    q = amortizer(spec, dim)
    z = draws(q)[1][:, 0]
    grid = _grid(z, 4001)
    p = density(q, grid[:, None])
    assert np.trapezoid(p, grid) == pytest.approx(1, abs=1e-3)
    # draws have the density's distribution: Kolmogorov's statistic below its 0.1 % quantile
    cdf = np.concatenate([[0], np.cumsum(0.5 * (p[1:] + p[:-1]) * np.diff(grid))])
    expected = np.interp(np.sort(z), grid, cdf)
    assert np.abs(expected - (np.arange(CHUNK) + 0.5) / CHUNK).max() < 1.95 / np.sqrt(CHUNK)


@each_flow(*TWO)
def test_density_integrates_to_one_in_two_dims(spec, dim):
    q = amortizer(spec, dim)
    z = draws(q)[1]
    x, y = _grid(z[:, 0], 401), _grid(z[:, 1], 401)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)
    p = density(q, points).reshape(401, 401)
    assert np.trapezoid(np.trapezoid(p, y, axis=1), x) == pytest.approx(1, abs=2e-3)


def _grid(draws: np.ndarray, n: int) -> np.ndarray:
    margin = np.ptp(draws) / 2
    return np.linspace(draws.min() - margin, draws.max() + margin, n)


def test_unknown_activation():
    with pytest.raises(ValueError, match="activation: expected one of.*'elu'.*got 'sine'"):
        CouplingFlow(activation="sine").build(2, 3, key=KEY)


# --- the amortizer: inputs, scaling, precision --------------------------------------------------

VARIABLES = (
    VariableInfo("y", ("obs",), (4,), "float64"),
    VariableInfo("X", ("predictor", "obs"), (2, 4), "float64"),
    VariableInfo("dose", (), (), "int64"),
)


def simulations(n: int, rows: int = 4) -> dict[str, np.ndarray]:
    return {
        "y": RNG.normal(size=(n, rows)),
        "X": RNG.normal(size=(n, 2, rows)),
        "dose": RNG.integers(5, size=n),
    }


@lru_cache
def small(summary: AbstractSummary, flow: AbstractFlow, row: str | None = "obs") -> Amortizer:
    inputs = InputLayout.of(VARIABLES, row)
    z = RNG.normal(size=(20, 2))
    return build_amortizer(Network(summary, flow), inputs, z, simulations(20), key=KEY)


def test_inputs_are_rows_and_what_goes_past_them():
    data = {k: v[0] for k, v in simulations(1).items()}
    rows, fixed = InputLayout.of(VARIABLES, "obs").split(data)
    np.testing.assert_allclose(rows, np.column_stack([data["y"], data["X"].T]), rtol=1e-6)
    np.testing.assert_array_equal(fixed, [data["dose"]])
    rows, fixed = InputLayout.of(VARIABLES, None).split(data)
    assert rows is None
    expected = np.concatenate([data["y"], data["X"].ravel(), [data["dose"]]])
    np.testing.assert_allclose(fixed, expected, rtol=1e-6)


def test_a_size_the_network_was_not_built_for_is_refused():
    data = {k: v[0] for k, v in simulations(1).items()}
    fixed = small(Flatten(), FLOWS["coupling"], None)
    with pytest.raises(ValueError, match=r"'y'.*\(4,\).*\(1,\)"):
        fixed.context({**data, "y": data["y"][:1]})
    rows = small(SETS["DeepSet"], FLOWS["coupling"])
    with pytest.raises(ValueError, match=r"'X'.*\(2, 'any'\).*\(1, 4\)"):
        rows.context({**data, "X": data["X"][:1]})
    longer = {k: v[0] for k, v in simulations(1, rows=9).items()}  # rows may differ
    assert eqx.filter_eval_shape(rows.context, longer).vector.shape == (4,)


def test_context_ignores_padding():
    q = small(SETS["DeepSet"], FLOWS["coupling"])
    data = {k: v[0] for k, v in simulations(1, rows=6).items()}
    alone = {k: v[..., :3] if v.ndim else v for k, v in data.items()}
    context = eqx.filter_jit(Amortizer.context)
    padded = context(q, data, Mask(np.arange(6) < 3)).vector
    np.testing.assert_allclose(padded, context(q, alone).vector, rtol=1e-5, atol=1e-6)
    assert padded.shape == (3 + 1,)


def test_robust_scaling_of_cauchy_inputs():
    values = np.random.default_rng(0).standard_cauchy(size=(200_000, 2)) * [1, 50] + [0, 7]
    scaling = Scaling.robust(values)
    # quartiles of a Cauchy variable lie one scale from the median; those of a normal 0.6745 sd
    np.testing.assert_allclose(scaling.loc, [0, 7], atol=1.0)
    np.testing.assert_allclose(scaling.scale, [2 / 1.349, 100 / 1.349], rtol=0.02)
    squashed = np.asarray(scaling.squash(jnp.asarray(values, jnp.float32)))
    assert np.isfinite(squashed).all() and np.abs(squashed).max() < 60
    # near the middle it only standardises
    near = np.asarray(scaling.loc + 0.1 * scaling.scale)
    np.testing.assert_allclose(scaling.squash(near), 0.1, rtol=1e-3)


def test_scaling_of_values_without_spread():
    values = np.array([[0.0, 5.0]] * 90 + [[1.0, 5.0]] * 10)  # no interquartile range; a constant
    for scaling in (Scaling.robust(values), Scaling.moments(values)):
        np.testing.assert_allclose(scaling.scale, [0.3, 1], rtol=1e-6)
        assert np.isfinite(scaling.squash(jnp.asarray(values))).all()


def test_heavy_tails_do_not_break_the_density():
    rng = np.random.default_rng(1)
    y = rng.standard_cauchy(size=(500, 4)) ** 3
    y[3] = np.inf  # what a simulator may well give is left out
    y[4] = 1e300  # beyond float32
    inputs = InputLayout.of(VARIABLES[:1], "obs")
    z = rng.standard_cauchy(size=(500, 2))
    z[5] = np.nan
    network = Network(SETS["DeepSet"], FLOWS["coupling and affine"])
    with precision.scope():
        q = build_amortizer(network, inputs, z, {"y": y}, key=KEY)
    weights, rest = eqx.partition(q, q.trainable())

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(weights, z, y):
        q = eqx.combine(weights, rest)
        return jnp.mean(jax.vmap(lambda a, b: q.log_prob(a, q.context({"y": b})))(z, y))

    with precision.scope():
        for i in ([*range(6, 500)], [4] * 494):
            value, gradient = loss(weights, z[i], y[i])
            assert np.isfinite(value)
            assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def _floats(tree) -> set[str]:
    found = {x.dtype for x in jax.tree.leaves(tree) if hasattr(x, "dtype")}
    return {str(d) for d in found if jnp.issubdtype(d, jnp.floating)}


@each(SETS | SEQUENCES)
def test_summaries_are_float32(spec):
    with precision.network_scope():
        weights = eqx.filter_eval_shape(spec.build, 2, key=KEY)
    assert _floats(weights) == {"float32"}
    for x64 in (False, True):
        with jax.enable_x64(x64):
            rows = jnp.asarray(ROWS, jnp.float32)
            found = eqx.filter_eval_shape(built(spec), rows, np.ones(7, bool))
            assert jax.tree.leaves(built(spec)) and found.dtype == jnp.float32


@each_flow(("coupling and affine", 1), ("autoregressive", 1))
def test_amortizers_are_float32(spec, dim):
    q = amortizer(spec, dim)
    assert _floats(eqx.filter(q, eqx.is_array)) == {"float32"}
    for x64 in (False, True):
        with jax.enable_x64(x64):
            context = eqx.filter_eval_shape(q.context, {"x": np.zeros(3)})
            z, log_q = eqx.filter_eval_shape(q.transform, np.zeros(dim, np.float32), CONTEXT)
            assert context.vector.dtype == z.dtype == jnp.float32

            def log_prob(q):
                return q.log_prob(jnp.zeros(dim), CONTEXT)

            densities = (log_q, eqx.filter_eval_shape(log_prob, q))
            assert _floats(densities) <= {"float32", "float64"}
    assert _floats(eqx.filter_eval_shape(eqx.filter_grad(log_prob), q)) == {"float32"}


IMPORTS = """
import pytensor.link.jax.dispatch  # switches x64 on before flowjax is there
import equinox as eqx, jax, jax.numpy as jnp
from pmcl.runtime.precision import network_scope
from pmcl.networks import CouplingFlow, MaskedAutoregressiveFlow
assert jax.config.jax_enable_x64
for flow in (
    CouplingFlow(layers=1, width=4, affine_width=8),
    MaskedAutoregressiveFlow(layers=1, width=4),
):
    with network_scope():
        flow.prepare()
        bijection = eqx.filter_eval_shape(flow.build, 2, 3, key=jax.random.key(0))
    weights = {x.dtype for x in jax.tree.leaves(bijection) if hasattr(x, "dtype")}
    print(*{str(d) for d in weights if jnp.issubdtype(d, jnp.floating)})
"""


def test_flows_are_float32_whatever_is_imported_first():
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["float32"] * 2


def test_only_networks_are_trained():
    q = small(SETS["DeepSet"], FLOWS["coupling and affine"])
    spec = q.trainable()
    chosen = eqx.filter(q, spec)
    assert jax.tree.leaves(chosen.row_scaling) == [] and jax.tree.leaves(chosen.z_scaling) == []
    assert jax.tree.leaves(chosen.summary) and jax.tree.leaves(chosen.flow)


# --- how a dataset is read ----------------------------------------------------------------------


@lru_cache
def compiled_model(build, n: int, covariates: tuple[str, ...]):
    with pm.Model(coords={"obs": range(n), "predictor": ["a", "b"]}) as model:
        build(n)
    sources = {k: pm.Normal.dist(0, 1) for k in covariates}
    compiled = compile_model(model, covariates=covariates)
    return compiled, make_simulator(compiled, read_covariates(sources, compiled.covariates))


def structure(build, n: int = 6, *, exchangeable=None, sequence=None, covariates=("X",)):
    compiled, simulator = compiled_model(build, n, covariates)
    return read_structure(compiled, simulator, exchangeable=exchangeable, sequence=sequence)


def regression(n: int) -> None:
    X = pm.Data("X", np.zeros((n, 2)), dims=("obs", "predictor"))
    mean = pm.Normal("alpha") + X @ pm.Normal("beta", dims="predictor")
    pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=np.zeros(n), dims="obs")


def rows_differ(n: int) -> None:
    dose = np.linspace(0, 1, n)  # an array of the model, not a covariate
    pm.Normal("y", pm.Normal("beta") * dose, 1, observed=np.zeros(n), dims="obs")


def autoregression(n: int) -> None:
    init = pm.Normal.dist(0, 1)
    pm.AR("y", pm.Normal("rho", shape=1), init_dist=init, observed=np.zeros(n), dims="obs")


def lagged(n: int) -> None:
    X = pm.Data("X", np.zeros((n, 2)), dims=("obs", "predictor"))
    before = pm.math.concatenate([X[:1, 0], X[:-1, 0]])
    pm.Normal("y", pm.Normal("beta") * before, 1, observed=np.zeros(n), dims="obs")


def without_dims(n: int) -> None:
    X = pm.Data("X", np.zeros(n))
    pm.Normal("y", pm.Normal("beta") * X, 1, observed=np.zeros(n))


def two_sizes(n: int) -> None:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=np.zeros(n), dims="obs")
    pm.Normal("w", mu, 1, observed=np.zeros(2), dims="predictor")


def test_exchangeable_rows_are_found():
    found = structure(regression)
    assert found[:2] == ("exchangeable", "obs")
    assert str(found).startswith("exchangeable along dim 'obs'")
    named = structure(regression, exchangeable="obs")
    assert named[:2] == ("exchangeable", "obs") and "you" in named.why
    assert structure(regression, sequence="obs")[:2] == ("sequence", "obs")


@pytest.mark.parametrize(
    ("build", "n"), [(rows_differ, 2), (rows_differ, 6), (autoregression, 6), (lagged, 2)]
)
def test_rows_that_are_not_exchangeable_are_not_taken_for_it(build, n):
    covariates = ("X",) if build is lagged else ()
    assert structure(build, n, covariates=covariates)[:2] == ("fixed", None)
    with pytest.raises(ValueError, match="exchangeable='obs'.*permuted.*sequence='obs'"):
        structure(build, n, exchangeable="obs", covariates=covariates)


def test_a_sequence_is_named_by_the_user():
    assert structure(autoregression, sequence="obs", covariates=())[:2] == ("sequence", "obs")


def test_dims_that_cannot_be_rows_are_refused():
    with pytest.raises(ValueError, match="`exchangeable` or `sequence`, both"):
        structure(regression, exchangeable="obs", sequence="obs")
    with pytest.raises(ValueError, match=r"exchangeable='row'.*one of \['obs'\]"):
        structure(regression, exchangeable="row")
    with pytest.raises(ValueError, match=r"sequence='predictor'.*one of \['obs'\]"):
        structure(regression, sequence="predictor")
    with pytest.raises(ValueError, match=r"sequence='obs'.*one of \[\]"):
        structure(two_sizes, sequence="obs", covariates=())


def test_fixed_size_without_a_common_dim():
    assert structure(two_sizes, covariates=())[:2] == ("fixed", None)
    # rows that evaluation finds to be joined have a name, though the model gives none
    assert structure(without_dims)[:2] == ("exchangeable", "y_dim_0")


def test_attention_in_another_order_is_equinox_attention():
    first, second, third = jax.random.split(jax.random.key(3), 3)
    block = _AttentionBlock(8, 2, 5, 1, key=first)
    points, rows = jax.random.normal(second, (3, 8)), jax.random.normal(third, (7, 8))
    mask = jnp.arange(7) < 5
    pairs = jnp.broadcast_to(mask, (3, 7))

    def expected(x, y, mask=None):
        h = jax.vmap(block.norm_attention)(x + block.attention(x, y, y, mask=mask))
        return jax.vmap(block.norm_feedforward)(h + jax.vmap(block.feedforward)(h))

    for given, pairwise in ((mask, pairs), (None, None)):
        assert np.allclose(
            block.gather(points, rows, given), expected(points, rows, pairwise), atol=1e-5
        )
    assert np.allclose(block.spread(rows, points), expected(rows, points), atol=1e-5)


def test_default_network_follows_the_structure():
    kinds = {"exchangeable": DeepSet, "sequence": Recurrent, "fixed": Flatten}
    for kind, expected in kinds.items():
        network = default_network(Structure(kind, None, ""), None)
        assert type(network.summary) is expected and type(network.flow) is CouplingFlow
    chosen = SetTransformer(outputs=4)
    network = default_network(Structure("exchangeable", "obs", ""), chosen)
    assert network.summary is chosen and type(network.flow) is CouplingFlow
    whole = Network(Flatten(), MaskedAutoregressiveFlow())
    assert default_network(Structure("exchangeable", "obs", ""), whole) is whole


def test_draws_of_a_network_that_extrapolates_are_tamed():
    wild = np.array([-1e30, -4000.0, -25.0, -20.0, -3.0, 0.0, 19.9, 20.1, 300.0, 1e6], np.float32)
    u, log_det = _tame(jnp.asarray(wild))
    inside = np.abs(wild) <= 20
    np.testing.assert_array_equal(np.asarray(u)[inside], wild[inside])
    assert np.abs(u).max() < 1500 and (np.diff(u) > 0).all()
    # beyond, 20 + 20 log(x / 20)
    np.testing.assert_allclose(u[-1], 20 + 20 * np.log(1e6 / 20), rtol=1e-6)
    slopes = jax.vmap(jax.grad(lambda x: _tame(x[None])[0][0]))(jnp.asarray(wild[1:]))
    _, dets = jax.vmap(lambda x: _tame(x[None]))(jnp.asarray(wild[1:]))
    np.testing.assert_allclose(dets, np.log(slopes), rtol=1e-4, atol=1e-6)
    back, inverse = _untame(u)
    np.testing.assert_allclose(back, wild, rtol=1e-3)
    np.testing.assert_allclose(inverse, -log_det, rtol=1e-5)
