"""Objectives, memory, strategies and adaptation, on a model where every answer is known."""

import warnings
from collections.abc import Callable, Sequence
from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from lines import EXACT, OFF, PRECISION, ROWS, Line, line, posterior_of, y_of
from scipy import stats
from scipy.spatial.distance import cdist

from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.compile import Density, Mask, compile_model
from pmcl.continual import (
    AbstractObjective,
    AdaptationSettings,
    Example,
    LogRatioVariance,
    Memory,
    Naive,
    ObjectiveValue,
    Occasion,
    PathGradient,
    Rehearsal,
    Replay,
    adapt,
    strategies_of,
)
from pmcl.continual.pool import Pool
from pmcl.continual.problem import SelfConsistency
from pmcl.data.batching import over_chunks
from pmcl.data.reading import as_task
from pmcl.data.task import DataError, Layout, Task
from pmcl.draws.network import look
from pmcl.metrics.clusters import k_centers, k_medoids
from pmcl.networks import Structure
from pmcl.runtime import precision


@pytest.fixture(scope="module")
def density(normal_mean) -> Density:
    return Density(normal_mean.compiled, "obs")


@pytest.fixture(scope="module")
def layout(normal_mean) -> Layout:
    return Layout.of(normal_mean.compiled, "obs")


# --- objectives ---------------------------------------------------------------------------------


def evaluate(
    objective: AbstractObjective, q: Line, density: Callable, y: np.ndarray, keys: int, mask=None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses, fractions of finite draws, and gradients by (a, b, c), at many keys."""

    @eqx.filter_jit
    def run(q, y, mask, keys):
        def one(key):
            def loss(q):
                found = objective(q, density, Example({"y": y}, mask), key)
                return found.loss, found.finite

            return eqx.filter_value_and_grad(loss, has_aux=True)(q)

        (loss, finite), gradient = jax.vmap(one)(keys)
        return loss, finite, jnp.stack([gradient.a, gradient.b, gradient.c], axis=1)

    with precision.scope():
        found = run(q, y, mask, jax.random.split(jax.random.key(1), keys))
        return tuple(np.asarray(v) for v in found)  # type: ignore[return-value]


Y = y_of(2.5)[0]


def test_at_the_exact_posterior_nothing_is_left_to_learn(density):
    loss, finite, _ = evaluate(LogRatioVariance(draws=4), EXACT, density, Y, 50)
    assert (finite == 1).all()
    np.testing.assert_allclose(loss, 0, atol=1e-20)
    # the path gradient vanishes at every single draw, not only on average
    loss, finite, gradient = evaluate(PathGradient(draws=1), EXACT, density, Y, 50)
    assert (finite == 1).all()
    np.testing.assert_allclose(gradient, 0, atol=1e-6)  # draws are made in float32
    # and its value is minus the log evidence: y ~ N(1, I + 4 11')
    evidence = stats.multivariate_normal(np.ones(ROWS), np.eye(ROWS) + 4).logpdf(Y)
    np.testing.assert_allclose(loss, -evidence, rtol=1e-9)


def gradient_of_divergence(q: Line, y: np.ndarray) -> np.ndarray:
    a, b, c = q.numbers
    off = PRECISION * (a + b * y.mean() - (1 / 4 + y.sum()) / PRECISION)
    return np.array([off, off * y.mean(), PRECISION * np.exp(2 * c) - 1])


def assert_mean(values: np.ndarray, expected: np.ndarray) -> None:
    """Compare a mean over keys, within five of its standard errors."""
    error = values.std(axis=0) / np.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - expected) < 5 * error).all()
    assert (5 * error < 0.1 * np.abs(expected)).all()  # else the comparison would say little


def test_gradients_are_those_of_the_divergence(density):
    expected = gradient_of_divergence(OFF, Y)
    for draws in (2, 5):
        _, _, gradient = evaluate(LogRatioVariance(draws=draws), OFF, density, Y, 60_000)
        assert_mean(gradient, 2 * expected)
    _, _, gradient = evaluate(PathGradient(draws=2), OFF, density, Y, 60_000)
    assert_mean(gradient, expected)


def test_losses_are_the_variance_and_the_divergence(density):
    loss, _, _ = evaluate(LogRatioVariance(draws=3), OFF, density, Y, 60_000)
    # r = const - off s P e + (1 - s^2 P) e^2 / 2 at z = m + s e, with P the posterior's precision
    a, b, c = OFF.numbers
    off, s = a + b * Y.mean() - (1 / 4 + Y.sum()) / PRECISION, np.exp(c)
    assert_mean(loss, (off * s * PRECISION) ** 2 + 0.5 * (1 - s**2 * PRECISION) ** 2)
    loss, _, _ = evaluate(PathGradient(draws=3), OFF, density, Y, 60_000)
    evidence = stats.multivariate_normal(np.ones(ROWS), np.eye(ROWS) + 4).logpdf(Y)
    assert_mean(loss, OFF.divergence(Y[None])[0] - evidence)


@pytest.mark.parametrize("objective", [PathGradient(draws=4), LogRatioVariance(draws=4)])
def test_padding_is_left_out(density, objective):
    alone = evaluate(objective, OFF, density, Y[:6], 3)
    rows = np.arange(ROWS) < 6
    padded = evaluate(objective, OFF, density, np.where(rows, Y, Y[5]), 3, Mask(rows))
    for a, b in zip(alone, padded, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


class Broken(eqx.Module):
    """A density that is NaN, gradient and all, above some z."""

    density: Density
    above: float

    def __call__(self, z, data, mask):
        return self.density(z, data, mask) + 0 * jnp.sum(jnp.sqrt(self.above - z))


@pytest.mark.parametrize("objective", [PathGradient(draws=4), LogRatioVariance(draws=4)])
def test_draws_without_a_density_are_left_out(density, objective):
    mean, sd = (1 / 4 + Y.sum()) / PRECISION, PRECISION**-0.5
    broken = Broken(density, float(mean + 0.5 * sd))
    loss, finite, gradient = evaluate(objective, EXACT, broken, Y, 4000)
    assert (finite < 1).any() and (finite > 0).any()
    share = stats.norm.cdf(0.5)
    assert abs(finite.mean() - share) < 5 * np.sqrt(share * (1 - share) / 16_000)
    # on what is left the exact posterior is still exact
    if isinstance(objective, PathGradient):
        evidence = stats.multivariate_normal(np.ones(ROWS), np.eye(ROWS) + 4).logpdf(Y)
        np.testing.assert_allclose(loss, np.where(finite > 0, -evidence, 0), rtol=1e-9)
    else:
        np.testing.assert_allclose(loss, 0, atol=1e-20)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    # and elsewhere gradients are finite: what is left out brings no NaN with it
    q = line(mean + 0.5 * sd - 0.7 * Y.mean(), 0.7, -0.8)  # half of its draws have no density
    loss, finite, gradient = evaluate(objective, q, broken, Y, 200)
    assert (finite == 0).any()
    assert np.isfinite(loss).all() and np.isfinite(gradient).all()
    assert (gradient[finite == 0] == 0).all() and (np.abs(gradient[finite == 1]) > 0).all()


# --- memory ---------------------------------------------------------------------------------------


def cost(points: np.ndarray, medoids: Sequence[int]) -> float:
    return float(cdist(points, points[list(medoids)]).min(axis=1).sum())


def test_k_medoids_against_brute_force():
    optimal = []
    for seed in range(10):
        points = np.random.default_rng(seed).normal(size=(9, 2)) * [1.0, 30.0]
        scaled = points / points.std(axis=0)  # no column outweighs another
        for k in (1, 2, 3, 4):
            found = k_medoids(points, k)
            assert len({*found.tolist()}) == k and (np.diff(found) > 0).all()
            # PAM's promise: no exchange of one medoid for another point helps
            exchanged = [
                cost(scaled, [*rest, other])
                for rest in combinations(found, k - 1)
                for other in range(9)
                if other not in rest
            ]
            assert cost(scaled, found) <= min(exchanged) + 1e-9
            best = min(cost(scaled, chosen) for chosen in combinations(range(9), k))
            optimal.append(cost(scaled, found) <= best + 1e-9)
            assert optimal[-1] or (k > 1 and cost(scaled, found) < 1.15 * best)
    assert np.mean(optimal) >= 0.9  # it is a local search, and seldom misses the best of all


def test_k_medoids_finds_clusters():
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [9, 0], [0, 9], [9, 9]])
    label = np.repeat(np.arange(4), [3, 9, 2, 5])
    points = centres[label] + 0.3 * rng.normal(size=(19, 2))
    found = k_medoids(points, 4)
    assert sorted(label[found]) == [0, 1, 2, 3]
    scaled = points / points.std(axis=0)
    best = min(cost(scaled, chosen) for chosen in combinations(range(19), 4))
    assert cost(scaled, found) == pytest.approx(best)


def test_k_medoids_of_few_or_equal_points():
    points = np.zeros((4, 2))
    np.testing.assert_array_equal(k_medoids(points, 4), range(4))
    np.testing.assert_array_equal(k_medoids(points, 9), range(4))
    assert len(set(k_medoids(points, 2).tolist())) == 2


def task_of(layout: Layout, mu: float | Sequence[float], seed: int = 0, prefix: str = "d") -> Task:
    y = y_of(mu, seed)
    return as_task({f"{prefix}{i}": {"y": v} for i, v in enumerate(y)}, layout)


def test_memory_keeps_datasets_with_their_task(layout):
    memory = Memory()
    assert len(memory) == 0
    with pytest.raises(ValueError, match="expected stored datasets, it is empty"):
        memory.stored()
    first, second = task_of(layout, [1, 2]), task_of(layout, [3, 4, 5], seed=1)
    one = memory.add(first, "spring")
    two = one.add(second, "summer")
    assert len(memory) == 0 and len(one) == 2 and len(two) == 5
    assert two.tasks == ("spring", "spring", "summer", "summer", "summer")
    assert two.stored().names == ("spring/d0", "spring/d1", "summer/d0", "summer/d1", "summer/d2")
    expected = np.concatenate([first.values["y"], second.values["y"]])
    np.testing.assert_array_equal(two.stored().values["y"], expected)
    kept = two.keep(np.array([4, 0, 2]))
    assert kept.tasks == ("spring", "summer", "summer")
    assert kept.stored().names == ("spring/d0", "summer/d0", "summer/d2")
    np.testing.assert_array_equal(kept.stored().values["y"], expected[[0, 2, 4]])


def test_memory_of_datasets_of_different_length(layout):
    short = as_task({"d0": {"y": Y[:4]}}, layout)
    memory = Memory().add(short, "spring").add(task_of(layout, 1), "summer").keep(np.array([0]))
    np.testing.assert_array_equal(memory.stored().dataset(0)["y"], Y[:4])


def test_memory_of_one_task_adapted_to_twice(layout):
    memory = Memory()
    for seed in range(3):
        memory = memory.add(task_of(layout, [1, 2], seed=seed), "spring")
    assert memory.tasks == ("spring",) * 6
    names = memory.stored().names
    assert len({*names}) == 6 and all(n.startswith("spring/d") for n in names)


# --- strategies -----------------------------------------------------------------------------------


PLAIN = {"weighting": "dataset"}  # the paper's replay


@pytest.fixture(scope="module")
def occasion(normal_mean, density) -> Callable[..., Occasion]:
    """Give the moment before or after a task, with a network that is a line."""

    def make(task: Task, name: str = "u", *, q: Line = OFF, seed: int = 0) -> Occasion:
        structure = Structure("exchangeable", "obs", "it is")
        return Occasion(name, task, q, density, normal_mean.simulator, structure, seed)  # type: ignore[arg-type]

    return make


def remembered(strategy: Replay, tasks: dict[str, Task], occasion, seed: int = 0) -> Memory:
    """Memory after some tasks."""
    memory = None
    with precision.scope():
        for name, task in tasks.items():
            now = occasion(task, name, seed=seed)
            memory = strategy.end(strategy.begin(memory, now), None, now)
    assert memory is not None
    return memory


def test_replay_keeps_some_datasets_of_every_task(layout, occasion):
    tasks = {n: task_of(layout, np.arange(5), seed=t) for t, n in enumerate("uvw")}
    memory = remembered(Replay(capacity=6, per_task=2), tasks, occasion)
    assert memory.tasks == ("u", "u", "v", "v", "w", "w")
    assert len(memory.times) == 6 and all(t.endswith("+00:00") for t in memory.times)
    # a task of fewer datasets gives what it has
    assert len(remembered(Replay(capacity=6, per_task=2), {"u": task_of(layout, 1)}, occasion)) == 1
    # which datasets: all of them, sooner or later
    task = {"u": task_of(layout, np.arange(3))}
    drawn = {
        name
        for seed in range(40)
        for name in remembered(Replay(capacity=6), task, occasion, seed).stored().names
    }
    assert drawn == {"u/d0", "u/d1", "u/d2"}


@pytest.mark.parametrize("distance", ["summary", "raw", lambda data: data["y"].mean("obs").values])
@pytest.mark.parametrize("keep", ["medoids", "centers"])
def test_replay_keeps_different_datasets_when_the_memory_is_full(layout, occasion, keep, distance):
    if callable(distance):
        wrong = Replay(capacity=1, per_task=2, distance=distance)
        with pytest.raises(ValueError, match=r"shape \(2, features\), got \(2,\)"):
            remembered(wrong, {"u": task_of(layout, [1, 2])}, occasion)

        def distance(data):
            return data["y"].mean("obs").values[:, None]

    strategy = Replay(capacity=3, per_task=4, keep=keep, distance=distance)
    tasks = {
        n: task_of(layout, mu + np.arange(4)) for n, mu in zip("uvw", (0, 50, 100), strict=True)
    }
    memory = remembered(strategy, tasks, occasion)
    assert memory.tasks == ("u", "v", "w")
    if keep == "medoids":  # of the last task's four, at 0, 1, 2 and 3, one in the middle
        assert memory.stored().names[-1] in ("w/d1", "w/d2")


def test_replay_keeps_any_datasets(layout, occasion):
    tasks = {n: task_of(layout, np.arange(6), seed=t) for t, n in enumerate("uv")}
    strategy = Replay(capacity=3, per_task=6, keep="random")
    kept = [remembered(strategy, tasks, occasion, seed).stored().names for seed in range(20)]
    assert all(len(names) == 3 for names in kept) and len({n for names in kept for n in names}) > 6


def test_raw_distances_need_one_length(layout, occasion):
    ragged = as_task({"a": {"y": Y}, "b": {"y": Y[:4]}}, layout)
    strategy = Replay(capacity=1, per_task=2, distance="raw")
    with pytest.raises(ValueError, match=r"distance='raw'.*\[4, 10\].*summary"):
        remembered(strategy, {"u": ragged}, occasion)


def test_centers_cover_all_points_within_twice_the_best_radius():
    rng = np.random.default_rng(0)
    for _ in range(20):
        points = rng.normal(size=(9, 2))
        standard = points / points.std(axis=0)
        distance = cdist(standard, standard)
        best = min(distance[list(c)].min(axis=0).max() for c in combinations(range(9), 3))
        found = k_centers(points, 3)
        assert len({*found}) == 3
        assert distance[found].min(axis=0).max() <= 2 * best + 1e-12
    np.testing.assert_array_equal(k_centers(np.zeros((5, 1)), 2).shape, (2,))
    np.testing.assert_array_equal(k_centers(points, 9), np.arange(9))


def test_strategies_say_what_they_rehearse_and_refuse_what_is_wrong(layout):
    assert Naive().rehearsal(None) is None
    memory = Memory().add(task_of(layout, 1), "u")
    plan = Replay(capacity=7, **PLAIN).rehearsal(memory)
    assert plan == Rehearsal(memory)
    for wrong in ({"capacity": 0}, {"per_task": 0}):
        with pytest.raises(ValueError, match=r"Replay: expected.*at least 1.*Naive\(\)"):
            Replay(**wrong)
    for wrong, message in (
        ({"keep": "best"}, "keep of"),
        ({"weighting": "row"}, "weighting of"),
        ({"distance": "far"}, "distance 'summary'"),
        ({"simulations": -1}, "simulations of at least 0"),
    ):
        with pytest.raises(ValueError, match=f"Replay: expected {message}|Replay: .*{message}"):
            Replay(**wrong)
    with pytest.raises(TypeError, match="expected pmcl strategies.*got 'replay'"):
        strategies_of("replay")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"different kinds, got \['Replay', 'Replay'\]"):
        strategies_of((Replay(), Replay(capacity=3)))


# --- adaptation -----------------------------------------------------------------------------------


class Divergence(AbstractObjective):
    """KL(q || exact posterior) in closed form: no draws, so no noise; counts how often traced.

    Its scale is 500, five times the limit, for datasets of mean above 100.
    """

    draws: int = eqx.field(static=True, default=1)
    traced: Callable[[], None] = eqx.field(static=True, default=lambda: None)

    def __call__(self, amortizer, density, example, key):
        self.traced()
        q, y = amortizer, example.data["y"]
        off = q.a + q.b * jnp.mean(y) - (1 / 4 + jnp.sum(y)) / PRECISION
        value = 0.5 * (PRECISION * (off**2 + jnp.exp(2 * q.c)) - 1 - np.log(PRECISION)) - q.c
        return ObjectiveValue(value, jnp.ones(()), jnp.where(jnp.mean(y) > 100, 500.0, 1.0))


SETTINGS = AdaptationSettings(steps=300, learning_rate=0.05, batch_size=64, clip=10.0, warmup=10)


def adapted(
    q: Line,
    density: Density,
    task: Task,
    *,
    objective: AbstractObjective | None = None,
    rehearsal: Task | None = None,
    capacity: int = 0,
    settings: AdaptationSettings = SETTINGS,
    strategies: tuple = (),
):
    structure = Structure("exchangeable", "obs", "it is")
    now = Occasion("v", task, q, density, None, structure, 0)  # type: ignore[arg-type]
    memory = Memory() if rehearsal is None else Memory().add(rehearsal, "u")
    replay = [Replay(capacity=capacity, **PLAIN)] if capacity else []
    with precision.scope():
        found = adapt(
            now,
            strategies=[*replay, *strategies],
            states=[*[memory] * len(replay), *[None] * len(strategies)],
            objective=objective if objective is not None else PathGradient(),
            settings=settings,
            progressbar=False,
        )
    return found.amortizer, found.record


def problem_of(density, *, together=16) -> SelfConsistency:
    none = jnp.zeros((), jnp.float32)
    return SelfConsistency(Divergence(), density, (), (), none, 0, together)


def host_of(task, weights, *, steps=1, batch_size=64) -> dict:
    """What steps work on, made outside jit: with a leading step, where there are several."""
    pool = Pool(task.batch(), None, np.asarray(weights, np.float32))
    some, number = pool.steps(steps, batch_size, np.random.default_rng(0))
    host = {"pool": some, "number": number, "simulated": None}
    return jax.tree.map(lambda x: x[0], host) if steps == 1 else host


@pytest.mark.parametrize("objective", [PathGradient(), LogRatioVariance()])
def test_adaptation_reaches_the_exact_posterior(density, layout, objective):
    task = task_of(layout, [-2, 0, 1, 4])
    before = OFF.divergence(task.values["y"])
    q, record = adapted(OFF, density, task, objective=objective)
    assert record.skipped == 0 and record.excluded == () and record.rehearsed == 0
    assert record.datasets == 4 and record.losses.shape == (300,)
    after = q.divergence(task.values["y"])
    assert (after < 0.02).all() and (after < 0.1 * before).all()
    np.testing.assert_allclose(q.numbers, EXACT.numbers, atol=0.05)


def test_loss_is_the_weighted_mean_over_datasets(density, layout):
    task = task_of(layout, [-2, 0, 1, 4])
    weights = np.array([1.0, 0.0, 1.0, 2.0])
    with precision.scope():
        # all at once, and in turns of two
        losses = [
            problem_of(density, together=m).loss(OFF, jax.random.key(0), host_of(task, weights))
            for m in (16, 2)
        ]
    each = OFF.divergence(task.values["y"])
    for loss in losses:
        assert float(loss) == pytest.approx(np.average(each, weights=weights), rel=1e-6)


def test_a_dataset_beyond_all_measure_does_not_own_the_gradient(density, layout):
    tasks = [task_of(layout, mu) for mu in (1, 2, 300)]
    with precision.scope():

        def value_and_gradient(task):
            host = host_of(task, np.ones(len(task)))
            value, gradient = problem_of(density).loss_and_gradient(OFF, jax.random.key(0), host)
            return float(value), np.array([*map(float, jax.tree.leaves(gradient))])

        each = [value_and_gradient(task) for task in tasks]
        together = as_task({str(i): t.dataset(0) for i, t in enumerate(tasks)}, layout)
        value, gradient = value_and_gradient(together)
    truth = [gradient_of_divergence(OFF, t.values["y"][0]) for t in tasks]
    np.testing.assert_allclose(each[0][1], truth[0], rtol=1e-6)
    np.testing.assert_allclose(each[2][1], truth[2] / 5, rtol=1e-6)
    assert value == pytest.approx(np.mean([v for v, _ in each]), rel=1e-6)
    assert value == pytest.approx(OFF.divergence(together.values["y"]).mean(), rel=1e-6)
    np.testing.assert_allclose(gradient, (truth[0] + truth[1] + truth[2] / 5) / 3, rtol=1e-6)


@pytest.mark.parametrize("objective", [PathGradient(), LogRatioVariance()])
def test_one_dataset_beyond_all_measure_spoils_nothing(density, layout, objective):
    clean = task_of(layout, [-2, 0, 1, 4])
    datasets = {n: clean.dataset(i) for i, n in enumerate(clean.names)}
    mixed = as_task({**datasets, "far": {"y": np.full(ROWS, 1e12)}}, layout)
    q, record = adapted(OFF, density, mixed, objective=objective)
    assert record.skipped == 0 and record.excluded == ()
    assert np.isfinite(q.numbers).all()


def test_minibatches_draw_datasets_by_weight(density, layout):
    task = task_of(layout, np.linspace(-3, 3, 12))
    weights = np.where(np.arange(12) % 3 == 0, 0.0, 1.0)
    with precision.scope():
        problem = problem_of(density, together=3)
        host = host_of(task, weights, steps=4000, batch_size=3)
        keys = jax.random.split(jax.random.key(0), 4000)
        losses = jax.jit(jax.vmap(lambda k, h: problem.loss(OFF, k, h)))(keys, host)
        losses = np.asarray(losses)
    each = OFF.divergence(task.values["y"])
    assert_mean(losses, np.average(each, weights=weights))


def test_what_is_rehearsed_is_in_the_loss(density, layout):
    task, old = task_of(layout, [1, 2, 3]), task_of(layout, [-4, -6], seed=5)
    plain, _ = adapted(OFF, density, task, objective=Divergence())
    padded, record = adapted(OFF, density, task, objective=Divergence(), capacity=7)  # is empty
    np.testing.assert_allclose(padded.numbers, plain.numbers, rtol=1e-6)
    assert record.rehearsed == 0
    # rehearsed datasets count as those of the task, though they have the same names
    both = task_of(layout, [1, 2, 3])
    both = as_task(
        {
            **{n: both.dataset(i) for i, n in enumerate(both.names)},
            **{f"old {n}": old.dataset(i) for i, n in enumerate(old.names)},
        },
        layout,
    )
    together, _ = adapted(OFF, density, both, objective=Divergence())
    for capacity in (2, 7, 1):  # also where a strategy now holds less than was stored before
        found, record = adapted(
            OFF, density, task, objective=Divergence(), rehearsal=old, capacity=capacity
        )
        np.testing.assert_allclose(found.numbers, together.numbers, rtol=1e-6)
        assert record.rehearsed == 2 and record.datasets == 3


def test_many_datasets_in_minibatches(density, layout):
    task = task_of(layout, np.linspace(-6, 6, 300))
    settings = AdaptationSettings(
        steps=300, learning_rate=0.05, batch_size=16, clip=10.0, warmup=10
    )
    q, record = adapted(OFF, density, task, settings=settings)
    assert record.datasets == 300 and record.skipped == 0
    assert q.divergence(task.values["y"]).mean() < 0.02


def test_datasets_without_a_density_are_left_out_by_name(density, layout):
    clean = task_of(layout, [1, 2, 3])
    huge = {"y": np.full(ROWS, 1e200)}  # its square is beyond every number
    datasets = {n: clean.dataset(i) for i, n in enumerate(clean.names)}
    mixed = as_task({"bad": huge, **datasets, "worse": huge}, layout)
    expected, _ = adapted(OFF, density, clean, objective=Divergence())
    with pytest.warns(UserWarning, match="2 of 5 datasets.*'bad', 'worse'"):
        found, record = adapted(OFF, density, mixed, objective=Divergence())
    np.testing.assert_allclose(found.numbers, expected.numbers, rtol=1e-6)
    assert record.excluded == ("bad", "worse") and record.datasets == 3 and record.skipped == 0
    # in minibatches too
    settings = AdaptationSettings(steps=50, learning_rate=0.05, batch_size=2, clip=10.0, warmup=0)
    with pytest.warns(UserWarning, match="2 of 5"):
        q, record = adapted(OFF, density, mixed, settings=settings)
    assert record.skipped == 0 and np.isfinite(q.numbers).all()
    with pytest.raises(ValueError, match="not finite for any of the 2 datasets"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted(OFF, density, as_task({"bad": huge, "worse": huge}, layout))


def test_draws_of_more_datasets_than_fit_in_one_batch(layout, density):
    task = task_of(layout, np.zeros(70))
    task.values["y"][[3, 66, 69]] = 1e200
    with precision.scope():
        drawn = look(OFF, density, task.batch(), seed=0)
    found = np.isfinite(drawn.log_prior + drawn.log_likelihood).mean(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(found < 1), [3, 66, 69])
    assert (found[[3, 66, 69]] == 0).all() and len(found) == 70
    for size in (64, 16, 70, 100):
        sizes, y = [], task.values["y"]

        def twice(batch, more, sizes=sizes):
            sizes.append(len(more))
            return batch.values["y"] * 2 + more

        index = np.arange(70)[::-1]
        doubled = over_chunks(twice, task.batch(), index, y[:, :1], size=size)
        np.testing.assert_array_equal(doubled, 2 * y[::-1] + y[:, :1])
        assert sizes == [size] * -(-70 // size)


def test_memory_of_another_length_is_padded_only_where_it_may_be(density, layout):
    short = as_task({"d0": {"y": Y[:4]}}, layout)
    _, record = adapted(OFF, density, task_of(layout, [1, 2]), rehearsal=short, capacity=2)
    assert record.skipped == 0
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        x = pm.Data("x", np.zeros(ROWS), dims="obs")
        pm.Normal("y", pm.Normal("mu") + x.mean(), 1, observed=np.zeros(ROWS), dims="obs")
    compiled = compile_model(model, covariates=("x",))
    other = Layout.of(compiled, "obs")
    task = as_task({"u": {"y": Y, "x": Y**2}}, other)
    shorter = as_task({"v": {"y": Y[:4], "x": Y[:4] ** 2}}, other)
    with pytest.raises(DataError, match="'obs'.*one length"):
        adapted(OFF, Density(compiled, "obs"), task, rehearsal=shorter, capacity=2)


# --- the posterior over several tasks -------------------------------------------------------------


@pytest.fixture
def posterior(normal_mean) -> AmortizedPosterior:
    return posterior_of(normal_mean.compiled, normal_mean.simulator)


def learn(posterior: AmortizedPosterior, task: Task, name: str, **options) -> AmortizedPosterior:
    options = {"steps": 300, "learning_rate": 0.05, "clip": 10.0, "warmup": 10} | options
    return posterior.adapt(task, name=name, progressbar=False, **options)


def test_replay_forgets_less_than_naive(posterior, layout):
    # All datasets of a task have the same mean: a task alone does not say how the line goes on.
    noise = y_of([0, 0, 0])
    noise -= noise.mean(axis=1, keepdims=True)
    tasks = {n: mu + noise for n, mu in {"high": 6, "low": 2}.items()}
    after = {}
    for strategy in (Naive(), Replay(capacity=5, **PLAIN)):
        now = posterior
        for name, y in tasks.items():
            now = learn(now, as_task({"y": y}, layout), name, strategy=strategy)
        after[type(strategy)] = [now.amortizer.divergence(y).mean() for y in tasks.values()]
        assert [t.name for t in now.records] == [*tasks]
    assert after[Naive][0] > 1  # forgotten
    assert max(after[Replay]) < 0.1  # at every task
    assert after[Naive][-1] < 0.1


def test_the_old_posterior_is_untouched(posterior, layout):
    before = posterior.amortizer.numbers
    one = learn(posterior, task_of(layout, [1, 2]), "u", strategy=Replay(capacity=4), steps=20)
    weights, memory = one.amortizer.numbers, one.memory
    two = learn(one, task_of(layout, [5, 6]), "v", steps=20)
    assert two.strategy == Replay(capacity=4)  # goes on with the one in force
    np.testing.assert_array_equal(posterior.amortizer.numbers, before)
    np.testing.assert_array_equal(one.amortizer.numbers, weights)
    assert len(posterior.memory) == 0 and one.memory is memory and len(memory) == 1
    assert len(two.memory) == 2 and two.memory.tasks == ("u", "v")
    assert posterior.records == () and len(one.records) == 1
    assert np.abs(two.amortizer.numbers - weights).max() > 1e-3
    # an adaptation that fails loses nothing
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="not finite for any"):
        learn(one, as_task({"bad": {"y": np.full(ROWS, 1e200)}}, layout), "w")
    np.testing.assert_array_equal(one.amortizer.numbers, weights)
    # and the same is the same again
    np.testing.assert_array_equal(
        learn(one, task_of(layout, [5, 6]), "v", steps=20).amortizer.numbers, two.amortizer.numbers
    )


def test_datasets_that_were_left_out_are_not_remembered(posterior, layout):
    task = as_task({"bad": {"y": np.full(ROWS, 1e200)}, "good": {"y": Y}}, layout)
    options = {"strategy": Replay(capacity=4, per_task=2), "steps": 300, "progressbar": False}
    with pytest.warns(UserWarning, match="'bad'") as said:
        found = posterior.adapt(task, name="u", learning_rate=0.05, clip=10.0, **options)
    assert said[0].filename == __file__  # where the user called
    assert found.memory.stored().names == ("u/good",)
    assert found.records[0].record.excluded == ("bad",)


def test_strategy_may_change_from_task_to_task(posterior, layout):
    always = {"patience": None}  # however good the network is
    now = learn(posterior, task_of(layout, [1, 2, 3]), "u", strategy=Replay(20, 3))
    now = learn(now, task_of(layout, [1, 2, 3]), "u")  # the same name again
    assert len(now.memory) == 6
    less = learn(now, task_of(layout, [4, 5]), "v", strategy=Replay(capacity=2), **always)
    assert len(less.memory) == 2 and less.records[-1].record.rehearsed == 6
    none = learn(less, task_of(layout, [4, 5]), "w", strategy=Naive())
    assert none.memory is less.memory and none.records[-1].record.rehearsed == 0


def test_nothing_is_compiled_from_one_task_to_the_next(posterior, layout, monkeypatch):
    monkeypatch.setattr("pmcl.continual.adaptation._RIGHT", 2.0)  # else no step is taken
    traces = []
    objective = Divergence(traced=lambda: traces.append(1))
    counts, now = [], posterior
    for t in range(5):
        task = task_of(layout, t + np.arange(3), seed=t)
        rate = 0.05 / (t + 1)
        strategy = Replay(capacity=3)  # full after the third task
        now = learn(now, task, str(t), strategy=strategy, objective=objective, learning_rate=rate)
        counts.append(len(traces))
    assert [len(t.record.losses) for t in now.records] == [300] * 5
    assert [t.record.rehearsed for t in now.records] == [0, 1, 2, 3, 3]
    assert counts[0] >= 1 and counts == [counts[0]] * 5
    # nor for other numbers of datasets and of steps
    for n in (1, 4, 40, 200):
        learn(now, task_of(layout, np.arange(n) / n), "more", objective=objective, steps=n)
    assert len(traces) == counts[0]
    learn(now, task_of(layout, np.arange(4)), "more", objective=objective, batch_size=5)
    assert len(traces) > counts[0]  # the count does see a compilation
