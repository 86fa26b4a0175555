"""The scanned loop against a plain one, and pretraining against an exact posterior."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import pmcl
from pmcl.compile import Density, compile_model, make_simulator, read_covariates
from pmcl.networks import CouplingFlow, DeepSet, InputLayout, Network, build_amortizer
from pmcl.runtime import precision
from pmcl.training import (
    Bank,
    Optimiser,
    PretrainingSettings,
    Problem,
    Simulated,
    combine,
    negative_log_likelihood,
    pretrain,
    pretraining,
    run,
)
from pmcl.training.checkpoint import read_checkpoint, write_checkpoint
from pmcl.training.loop import run_block, start
from pmcl.training.run import Moment

# --- the loop -----------------------------------------------------------------------------------


class Toy(eqx.Module):
    """All that the loop needs of an amortizer: weights, and which of them may change."""

    weights: jax.Array
    still: jax.Array

    def trainable(self) -> "Toy":
        return Toy(True, False)  # type: ignore[arg-type]


class Parabola(Problem):
    """A loss with a known gradient; `host["spoil"]` makes the loss, or the gradient, infinite."""

    target: jax.Array
    traced: Callable[[], None]

    def loss(self, amortizer, key, host):
        self.traced()
        value = jnp.sum((amortizer.weights * amortizer.still - self.target) ** 2)
        if "spoil" not in host:
            return value
        steep = jnp.sqrt(jnp.where(host["spoil"] == 2, value - value, 1.0))  # 0, of gradient NaN
        return jnp.where(host["spoil"] == 1, jnp.nan, value + steep)


def nothing() -> None:
    """Stand for a counter of traces where none is wanted."""


TOY = Toy(jnp.asarray([1.0, -2.0, 30.0]), jnp.asarray([1.0, 1.0, 0.5]))
TARGET = jnp.asarray([0.5, 0.0, 1.0])


def optimiser(steps: int, rate: float = 0.1, **options) -> Optimiser:
    return Optimiser.of(rate, steps, **options)


def loop(chosen: Optimiser, size: int, host=None, problem: Problem | None = None):
    problem = problem if problem is not None else Parabola(TARGET, nothing)
    state = start(TOY, chosen, 0)
    return run_block(problem, chosen, TOY, state, host or {}, size)


@pytest.mark.parametrize("warmup", [0, 4])
def test_loop_is_adam_with_clipping_warm_up_and_cosine_decay(warmup):
    chosen = optimiser(12, warmup=warmup, clip=2.0, final=0.1)
    state, losses = loop(chosen, 12)
    # the same by hand: the rate climbs over the warm-up, then falls along a half cosine
    steps = np.arange(12)
    decay = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (steps - warmup) / (12 - warmup)))
    rates = 0.1 * np.where(steps < warmup, steps / max(warmup, 1), decay)
    w, still, target = (np.asarray(v, float) for v in (TOY.weights, TOY.still, TARGET))
    m, v = np.zeros(3), np.zeros(3)
    for t, rate in enumerate(rates):
        assert losses[t] == pytest.approx(np.sum((w * still - target) ** 2), rel=1e-4)
        g = 2 * (w * still - target) * still
        g = g * min(1, 2.0 / np.linalg.norm(g))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - rate * (m / (1 - 0.9 ** (t + 1))) / (np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8)
    np.testing.assert_allclose(state.params.weights, w, rtol=1e-4)
    trained = combine(state.params, TOY)
    np.testing.assert_array_equal(trained.still, TOY.still)
    np.testing.assert_array_equal(trained.weights, state.params.weights)
    assert state.params.still is None


@pytest.mark.parametrize("spoil", [1, 2], ids=["loss", "gradient"])
def test_steps_that_are_not_finite_are_skipped_and_counted(spoil):
    chosen = optimiser(10)
    bad = np.isin(np.arange(10), [0, 4, 9])
    state, losses = loop(chosen, 10, {"spoil": jnp.asarray(np.where(bad, spoil, 0))})
    assert int(state.skipped) == 3 and int(state.step) == 10
    np.testing.assert_array_equal(np.isnan(losses), bad)
    # as if the three had not been
    expected, expected_losses = loop(chosen, 7, {"spoil": jnp.zeros(7, int)})
    np.testing.assert_array_equal(state.params.weights, expected.params.weights)
    np.testing.assert_array_equal(losses[~bad], expected_losses)
    assert int(expected.skipped) == 0


def test_steps_past_the_end_change_nothing():
    chosen = optimiser(7)
    expected, losses = loop(chosen, 7)
    state, longer = loop(chosen, 11)
    assert int(state.step) == 7 and int(state.skipped) == 0
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(longer[:7], losses)
    assert np.isnan(longer[7:]).all()


def test_another_rate_or_length_compiles_nothing():
    traces = []
    problem = Parabola(TARGET, lambda: traces.append(1))
    first, _ = loop(optimiser(6, rate=0.1), 6, problem=problem)
    once = len(traces)
    assert once >= 1
    second, _ = loop(optimiser(6, rate=0.01), 6, problem=problem)
    other = Parabola(TARGET + 1, problem.traced)  # nor do other data
    loop(optimiser(6, rate=0.02), 6, problem=other)
    assert len(traces) == once
    moved = [np.abs(s.params.weights - TOY.weights).max() for s in (first, second)]
    assert moved[0] > 3 * moved[1] > 0
    loop(optimiser(60, rate=0.1, warmup=3, clip=2.0, final=0.1), 6, problem=problem)
    assert len(traces) == once
    loop(optimiser(6), 7, problem=problem)  # the count does see a compilation
    assert len(traces) > once


# --- the loss -------------------------------------------------------------------------------------


class Shifted(eqx.Module):
    """q(z | x) = N(x, exp(w)) in closed form."""

    w: jax.Array

    def context(self, data, mask=None, place=None):
        return jnp.mean(data["x"])

    def log_prob(self, z, context):
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, context, jnp.exp(self.w)))


def test_simulations_that_are_not_finite_are_left_out_of_the_loss():
    rng = np.random.default_rng(0)
    z, x, n = rng.normal(size=(6, 2)), rng.normal(size=(6, 3)), rng.integers(9, size=6)
    keep = [0, 2, 5]
    z_bad, x_bad = z.copy(), x.copy()
    z_bad[1, 0], x_bad[3, 2], x_bad[4, 0] = np.nan, np.inf, np.nan
    both = eqx.filter_value_and_grad(negative_log_likelihood)
    q = Shifted(jnp.zeros(()))
    with precision.scope():
        value, gradient = both(q, jnp.asarray(z_bad), {"x": jnp.asarray(x_bad), "n": n})
        expected, expected_gradient = both(q, z[keep], {"x": x[keep], "n": n[keep]})
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient.w, expected_gradient.w, rtol=1e-6)
    error = ((z - x.mean(axis=1)[:, None])[keep] ** 2).sum(axis=1)
    assert value == pytest.approx(np.mean(0.5 * error + np.log(2 * np.pi)), rel=1e-5)
    assert gradient.w == pytest.approx(np.mean(2 - error), rel=1e-5)


def test_what_is_held_back_is_judged_in_parts_and_each_counts_once():
    rng = np.random.default_rng(1)
    z, x = rng.normal(size=(7, 2)), rng.normal(size=(7, 3))
    z[4, 1] = np.nan  # the second of three parts has fewer that count
    q = Shifted(jnp.zeros(()))
    with precision.scope():
        held_back = Simulated(jnp.asarray(z), {"x": jnp.asarray(x)}, None)
        whole = float(negative_log_likelihood(q, *held_back))
        for batch in (1, 3, 7, 64):
            found = float(pretraining._validate(q, held_back, batch))
            assert found == pytest.approx(whole, rel=1e-6)


# --- pretraining: the exact posterior -------------------------------------------------------------


def test_pretraining_reaches_the_exact_posterior(normal_mean):
    settings = PretrainingSettings(
        steps=600,
        batch_size=64,
        learning_rate=1e-2,
        warmup=20,
        clip=1.0,
        validation=256,
        patience=None,
        block=200,
    )
    with precision.scope():
        trained, record = pretrain(
            normal_mean.amortizer(),
            normal_mean.simulator,
            settings,
            seed=0,
            progressbar=False,
        )
        z, data = normal_mean.simulator.simulate(2000, random_seed=99)
        mean, sd = normal_mean.exact(data["y"])
        exact_log_p = -0.5 * ((z[:, 0] - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
        loss = float(eqx.filter_jit(negative_log_likelihood)(trained, z, data))
        eps = np.random.default_rng(0).normal(size=(2000, 1)).astype(np.float32)

        @eqx.filter_jit
        @eqx.filter_vmap(in_axes=(None, 0))
        def draw(q, y):
            context = q.context({"y": y})
            return jax.vmap(q.transform, in_axes=(0, None))(eps, context)[0][:, 0]

        draws = np.asarray(draw(trained, data["y"][:200]), float)

    assert record.skipped == 0 and record.steps == 600 and not record.stopped_early
    assert len(record.losses) == 600 and len(record.validation) == 3
    # At the exact posterior the loss is its entropy, and above it by the mean KL divergence: the
    # difference on the same simulations has little noise. 0.02 nats is a mean off by 0.2 sd.
    divergence = loss + exact_log_p.mean()
    assert -0.005 < divergence < 0.02
    # 2,000 draws give a mean to 0.022 sd and an sd to 1.6 %; the rest is the network's
    off = (draws.mean(axis=1) - mean[:200]) / sd[:200]
    ratio = draws.std(axis=1) / sd[:200]
    assert np.sqrt(np.mean(off**2)) < 0.2 and np.sqrt(np.mean((ratio - 1) ** 2)) < 0.1


def test_a_budget_of_simulations_is_seen_evenly_and_never_exceeded(normal_mean, monkeypatch):
    with precision.scope():
        simulated = Simulated.of(normal_mean.simulator, 1000, random_seed=3)
        density = Density(normal_mean.compiled, "obs")
        loss = pretraining.StoredLoss(simulated.take(slice(100)), density)
        seen = np.concatenate([np.ravel(h["index"]) for h in loss.hosts(30, 20, range(2), 7)])
        again = np.concatenate([np.ravel(h["index"]) for h in loss.hosts(30, 20, range(1, 2), 7)])
    np.testing.assert_array_equal(np.bincount(seen, minlength=100), 12)
    np.testing.assert_array_equal(seen[600:], again)  # as after an interruption
    # the last hundred are held back, and no other is ever made
    fresh, begun = normal_mean.simulator.simulate(2000, random_seed=99), normal_mean.amortizer()
    monkeypatch.setattr(type(normal_mean.simulator), "simulate", None)
    monkeypatch.setattr(type(normal_mean.simulator), "draw", None)
    settings = PretrainingSettings(600, 64, 1e-2, 20, 1.0, 512, None, 100, 1000)
    with precision.scope():
        q, record = pretrain(
            begun, normal_mean.simulator, settings, seed=0, bank=Bank(simulated, 0, density),
            progressbar=False,
        )  # fmt: skip
        z, data, *_ = simulated.take(slice(900, None))
        judged = float(eqx.filter_jit(negative_log_likelihood)(q, z, data))
        loss = float(eqx.filter_jit(negative_log_likelihood)(q, *fresh))
    assert record.validation.min() == pytest.approx(judged, rel=1e-5)
    mean, sd = normal_mean.exact(fresh[1]["y"])
    exact_log_p = -0.5 * ((fresh[0][:, 0] - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
    assert -0.01 < loss + exact_log_p.mean() < 0.1


# --- pretraining: seeds, checkpoints, best weights ------------------------------------------------

SETTINGS = PretrainingSettings(
    steps=48,
    batch_size=8,
    learning_rate=3e-3,
    warmup=4,
    clip=1.0,
    validation=16,
    patience=None,
    block=10,
)
# five blocks of ten steps, two of them past the end


class Result(NamedTuple):
    """Weights as one vector, and the record."""

    weights: np.ndarray
    record: pretraining.PretrainingRecord


def flat(amortizer) -> np.ndarray:
    leaves = jax.tree.leaves(eqx.filter(amortizer, eqx.is_inexact_array))
    return np.concatenate([np.ravel(x) for x in leaves])


class Pretrain(NamedTuple):
    """`pretrain` with everything but what differs from test to test."""

    amortizer: object
    simulator: object

    def __call__(self, *, settings=SETTINGS, seed=5, checkpoint=None, other=None) -> Result:
        with precision.scope():
            trained, record = pretrain(
                self.amortizer if other is None else other,
                self.simulator,
                settings,
                seed=seed,
                checkpoint=checkpoint,
                progressbar=False,
            )
        return Result(flat(trained), record)


@pytest.fixture(scope="module")
def tiny(normal_mean) -> Pretrain:
    return Pretrain(normal_mean.amortizer(), normal_mean.simulator)


@pytest.fixture(scope="module")
def whole(tiny) -> Result:
    """Give a run that nothing interrupts."""
    return tiny()


def assert_equal(a: Result, b: Result) -> None:
    """Bit by bit."""
    np.testing.assert_array_equal(a.weights, b.weights)
    for x, y in zip(a.record, b.record, strict=True):
        np.testing.assert_array_equal(x, y)


class Interrupted(Exception):
    """As if the process had been killed."""


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Make pretraining stop in block number `after`, before that block is written down."""

    @contextmanager
    def bar(*args: object, **options: object) -> Iterator[SimpleNamespace]:
        calls = []

        def advance(n: int, note: str = "") -> None:
            calls.append(n)
            if len(calls) == after + 2:  # the first call moves to where training starts
                raise Interrupted

        yield SimpleNamespace(advance=advance)

    monkeypatch.setattr(run, "progress_bar", bar)


def test_same_seed_same_weights(tiny, whole):
    assert_equal(tiny(), whole)
    other = tiny(seed=6)
    assert np.abs(other.weights - whole.weights).max() > 1e-4
    assert len(whole.record.losses) == 48 and np.isfinite(whole.record.losses).all()
    assert len(whole.record.validation) == 5


@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    tiny, whole, tmp_path, monkeypatch, after
):
    path = tmp_path / "runs" / "checkpoint"
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(Interrupted):
            tiny(checkpoint=path)
    assert [p.name for p in path.parent.iterdir()] == ["checkpoint"]
    assert_equal(tiny(checkpoint=path), whole)
    assert_equal(tiny(checkpoint=path), whole)  # and once more, with nothing left to do


def test_a_checkpoint_that_is_damaged_or_cannot_be_written_is_said(tmp_path):
    path, now = tmp_path / "checkpoint", {"a": np.arange(1000.0)}
    write_checkpoint(path, {"run": 1}, now)
    np.testing.assert_array_equal(read_checkpoint(path, {"run": 1}, now)["a"], now["a"])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"checkpoint'.*is damaged.*another path"):
        read_checkpoint(path, {"run": 1}, now)
    with pytest.raises(OSError, match=r"could not be written \(.*\); what was there before is as"):
        write_checkpoint(path / "below a file", {"run": 1}, now)
    assert path.read_bytes() == whole[: len(whole) // 2]


def test_a_checkpoint_of_another_run_is_refused(tiny, normal_mean, tmp_path):
    path = tmp_path / "checkpoint"
    tiny(checkpoint=path)
    with pytest.raises(ValueError, match=r"another run: expected.*'seed': 6.*got.*'seed': 5"):
        tiny(checkpoint=path, seed=6)
    with pytest.raises(ValueError, match=r"expected.*'batch_size': 4.*got.*'batch_size': 8"):
        tiny(checkpoint=path, settings=replace(SETTINGS, batch_size=4))
    wider = CouplingFlow(layers=1, width=9, depth=1, knots=4, affine_width=16)
    network = Network(
        DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=16, head_depth=1), wider
    )
    with pytest.raises(ValueError, match=r"expected.*'weights': \d+.*got.*'weights': \d+"):
        tiny(checkpoint=path, other=normal_mean.amortizer(network))
    rescaled = eqx.tree_at(lambda a: a.z_scaling.scale, tiny.amortizer, jnp.asarray([9.0]))
    with pytest.raises(ValueError, match="another run.*'standardisation'"):  # another prior
        tiny(checkpoint=path, other=rescaled)
    before = path.read_bytes()
    path.write_bytes(b"\x93NUMPY something else")
    with pytest.raises(ValueError, match=r"checkpoint'.*not a checkpoint.*another path"):
        tiny(checkpoint=path)
    path.write_bytes(before)
    tiny(checkpoint=path)


class Script:
    """Validation losses as a test wants them; keeps the weights that it was asked about."""

    def __init__(self, *losses: float):
        self.losses = [*losses]
        self.seen: list[np.ndarray] = []

    def __call__(self, amortizer, held_back, batch):
        self.seen.append(flat(amortizer))
        return jnp.asarray(self.losses[len(self.seen) - 1], jnp.float32)


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ((3, 1, 2, 4, 5), 1),
        ((1, 2, 3, 1, 2), 0),
        ((5, 4, 3, 2, 1), 4),
        ((2, np.nan, 3, 1, np.nan), 3),
        ((np.nan, 2, 3, np.inf, 4), 1),
    ],
)
def test_best_weights_are_those_of_the_best_validation_loss(tiny, monkeypatch, losses, best):
    script = Script(*losses)
    monkeypatch.setattr(pretraining, "_validate", script)
    found = tiny()
    assert len(script.seen) == 5
    np.testing.assert_array_equal(found.weights, script.seen[best])
    assert found.record.best_step == [10, 20, 30, 40, 48][best]
    np.testing.assert_array_equal(found.record.validation, np.asarray(losses, np.float32))


def test_validation_losses_that_are_never_finite_are_an_error(tiny, monkeypatch):
    monkeypatch.setattr(pretraining, "_validate", Script(np.nan, np.inf, np.nan, np.nan, np.inf))
    with pytest.raises(ValueError, match="validation loss.*finite.*learning_rate"):
        tiny()


def test_training_stops_when_patience_ends(tiny, tmp_path, monkeypatch):
    settings = replace(SETTINGS, patience=2)
    script = Script(3, 1, 2, 1.5, 0.5)
    monkeypatch.setattr(pretraining, "_validate", script)
    path = tmp_path / "checkpoint"
    found = tiny(settings=settings, checkpoint=path)
    assert found.record.stopped_early and found.record.steps == 40
    assert found.record.best_step == 20 and len(found.record.losses) == 40
    np.testing.assert_array_equal(found.weights, script.seen[1])
    # a run that had stopped has stopped, though the fifth block would have been better
    assert_equal(tiny(settings=settings, checkpoint=path), found)
    assert len(script.seen) == 4


# --- simulations that are not made inside jit -----------------------------------------------------


@pytest.mark.parametrize("kind", ["pytensor", "function"])
def test_simulations_from_the_host_train_too(kind, tmp_path, monkeypatch):
    with pm.Model(coords={"obs": range(5)}) as model:
        x = pm.Data("x", np.zeros(5), dims="obs")
        pm.Normal("y", pm.Normal("slope") * x, 1, observed=np.zeros(5), dims="obs")
    compiled = compile_model(model, covariates=("x",))
    source = pm.Normal.dist(0, 1) if kind == "pytensor" else lambda rng, n: rng.normal(size=n)
    simulator = make_simulator(
        compiled,
        read_covariates({"x": source}, compiled.covariates),
        backend="pytensor" if kind == "pytensor" else "jax",
    )
    z, data = simulator.simulate(100, random_seed=1)
    network = Network(
        DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=16, head_depth=1),
        CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=16),
    )
    inputs = InputLayout.of(compiled.data, "obs")
    amortizer = build_amortizer(network, inputs, z, data, key=jax.random.key(0))
    both = Pretrain(amortizer, simulator)
    settings = replace(SETTINGS, learning_rate=2e-2)
    found = both(settings=settings)
    assert found.record.skipped == 0 and np.isfinite(found.record.losses).all()
    assert found.record.losses[-20:].mean() < found.record.losses[:20].mean() - 0.05
    # made in the background, and still the same
    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        interrupt(patch, 2)
        with pytest.raises(Interrupted):
            both(settings=settings, checkpoint=path)
    assert_equal(both(settings=settings, checkpoint=path), found)


@pytest.mark.slow
def test_a_callback_is_told_of_every_block_and_may_end_the_training() -> None:
    seen: list[tuple[int, float, np.ndarray]] = []

    def two(step: int, loss: float, record: Moment) -> bool:
        seen.append((step, loss, record.losses))
        return step == 200

    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 1, 2), 1, observed=np.zeros(10))
    network = pmcl.Network(pmcl.DeepSet(outputs=4, width=8), pmcl.CouplingFlow(layers=1, width=8))
    posterior = pmcl.fit_amortized(
        model, network=network, steps=450, validation=64, simulations=256, callback=two,
        random_seed=0, progressbar=False,
    )  # fmt: skip
    assert [step for step, *_ in seen] == [100, 200]
    (record,) = posterior.pretraining
    assert record.steps == 200 and record.stopped_early
    np.testing.assert_array_equal(record.losses, seen[-1][2])
    np.testing.assert_allclose(record.validation, [loss for _, loss, _ in seen], rtol=1e-6)

    def at_once(step: int, loss: float, record: Moment) -> None:
        raise StopIteration

    adapted = posterior.adapt(
        {"y": np.full((2, 10), 8.0) + np.arange(10)}, name="far", objective=pmcl.PathGradient(),
        steps=60, patience=None, callback=at_once, random_seed=0, progressbar=False,
    )  # fmt: skip
    assert adapted.records[0].record.stopped == "by the callback"
    frame = adapted.losses
    assert frame.groupby("training", sort=False).size().to_dict() == {"pretraining": 200, "far": 25}
    told = frame[(frame.training == "pretraining") & frame.held_back.notna()]
    assert told.step.tolist() == [100, 200]
    np.testing.assert_allclose(told.held_back, record.validation)
    np.testing.assert_array_equal(frame.loss[:200], record.losses)
