"""Weight consolidation, teachers, the pool and states, against closed forms."""

from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from lines import EXACT, OFF, PRECISION, ROWS, Line, line, posterior_of, y_of
from scipy import stats

from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.compile import Density
from pmcl.continual import (
    AbstractStrategy,
    AdaptationSettings,
    ElasticWeightConsolidation,
    Example,
    LogRatioVariance,
    Memory,
    Naive,
    ObjectiveValue,
    Occasion,
    OnlineLaplace,
    PathGradient,
    Replay,
    SynapticIntelligence,
    TeacherDistillation,
    Teaching,
    adapt,
    importance,
    quality,
    weighted_distance,
)
from pmcl.continual.objectives.objectives import AbstractObjective
from pmcl.continual.pool import gather
from pmcl.data.reading import as_task
from pmcl.data.task import Layout, Task
from pmcl.draws.path import efficiency
from pmcl.metrics import transfer
from pmcl.networks import Structure
from pmcl.runtime import precision
from pmcl.training import run as training_run

SETS = Structure("exchangeable", "obs", "it is")
SERIES = Structure("sequence", "obs", "it is")


@pytest.fixture(scope="module")
def density(normal_mean) -> Density:
    return Density(normal_mean.compiled, "obs")


@pytest.fixture(scope="module")
def layout(normal_mean) -> Layout:
    return Layout.of(normal_mean.compiled, "obs")


def task_of(layout: Layout, mu, seed: int = 0) -> Task:
    return as_task({f"d{i}": {"y": v} for i, v in enumerate(y_of(mu, seed))}, layout)


@pytest.fixture(scope="module")
def occasion(normal_mean, density) -> Callable[..., Occasion]:
    def make(task: Task, q: Line = OFF, *, name: str = "u", structure=SETS, seed: int = 0):
        return Occasion(name, task, q, density, normal_mean.simulator, structure, seed)  # type: ignore[arg-type]

    return make


class Divergence(AbstractObjective):
    """KL(q || exact posterior) in closed form: no draws, so no noise."""

    draws: int = eqx.field(static=True, default=1)
    traced: Callable[[], None] = eqx.field(static=True, default=lambda: None)

    def __call__(self, amortizer, density, example, key):
        self.traced()
        q, y = amortizer, example.data["y"]
        off = q.a + q.b * jnp.mean(y) - (1 / 4 + jnp.sum(y)) / PRECISION
        value = 0.5 * (PRECISION * (off**2 + jnp.exp(2 * q.c)) - 1 - np.log(PRECISION)) - q.c
        return ObjectiveValue(value, jnp.ones(()))


def numbers(tree: Line) -> np.ndarray:
    return np.array([float(tree.a), float(tree.b), float(tree.c)])


# --- importance -----------------------------------------------------------------------------------


def test_fisher_information_is_that_of_a_normal(density, layout):
    y = y_of([-2, 0, 1, 4])
    with precision.scope():
        found = importance(
            OFF, density, task_of(layout, [-2, 0, 1, 4]), "fisher", draws=20_000, seed=0
        )
    c = OFF.numbers[2]
    expected = [np.exp(-2 * c), np.mean(y.mean(axis=1) ** 2) * np.exp(-2 * c), 2.0]
    np.testing.assert_allclose(numbers(found), expected, rtol=0.05)


def test_importance_by_self_consistency_is_the_mean_of_squared_gradients(density, layout):
    task = task_of(layout, np.linspace(-2, 4, 19))  # more than are looked at together
    objective = LogRatioVariance(8)
    with precision.scope():
        found = importance(OFF, density, task, "self_consistency", draws=8, seed=3)
        squares = []
        for i in range(19):
            key = jax.random.fold_in(jax.random.key(3), i)

            def loss(q: Line, i: int = i, key=key):
                return objective(q, density, Example({"y": task.values["y"][i]}), key).loss

            squares.append(numbers(jax.grad(loss)(OFF)) ** 2)
        nothing = importance(EXACT, density, task, "self_consistency", draws=8, seed=3)
    np.testing.assert_allclose(numbers(found), np.mean(squares, axis=0), rtol=1e-6)
    np.testing.assert_allclose(numbers(nothing), 0, atol=1e-9)  # vanishes where the fit is good


def test_weighted_distance_is_the_quadratic_form():
    with precision.scope():
        value = weighted_distance(line(1, 2, 3), line(0, 0, 1), line(5, 1, 2))
    assert float(value) == 5 * 1 + 1 * 4 + 2 * 4


# --- consolidation --------------------------------------------------------------------------------


def test_consolidation_before_the_first_task_comes_from_simulations(occasion, layout):
    now = occasion(task_of(layout, [1, 2]))
    strategy = ElasticWeightConsolidation(strength=3.0, draws=200, simulations=400)
    with precision.scope():
        state = strategy.begin(None, now)
        c = OFF.numbers[2]
        # mean(y) ~ N(1, 2^2 + 1/10) under the model
        expected = [np.exp(-2 * c), (1 + 4 + 1 / ROWS) * np.exp(-2 * c), 2.0]
        np.testing.assert_allclose(numbers(state.importance), expected, rtol=0.2)
        moved = line(0.5, 0.7, -0.8)
        expected_penalty = 3.0 * float(state.importance.a) * 0.1**2
        assert float(strategy.penalty(state, moved)) == pytest.approx(expected_penalty, rel=1e-5)
        free = ElasticWeightConsolidation(simulations=0).begin(None, now)  # the paper's
    np.testing.assert_array_equal(numbers(free.importance), 0)


@pytest.mark.parametrize("decay", [0.0, 0.4, 1.0])
def test_older_importance_decays(occasion, layout, decay):
    strategy = ElasticWeightConsolidation(decay=decay, draws=100, simulations=50)
    one, two = task_of(layout, [1, 2]), task_of(layout, [5, 6], seed=1)
    with precision.scope():
        start = strategy.begin(None, occasion(one))
        after = strategy.end(start, None, occasion(one, EXACT))
        fresh = strategy.end(strategy.begin(None, occasion(two)), None, occasion(two, EXACT))
        later = strategy.end(after, None, occasion(two, EXACT))
        new = importance(EXACT, occasion(two).density, two, "fisher", draws=100, seed=0)
    expected = decay * numbers(after.importance) + numbers(new)
    np.testing.assert_allclose(numbers(later.importance), expected, rtol=1e-5)
    np.testing.assert_array_equal(numbers(later.anchor), EXACT.numbers)
    assert fresh.kind == "fisher"


def settings(**changes) -> AdaptationSettings:
    values = {"steps": 400, "learning_rate": 0.03, "batch_size": 64, "clip": 10.0, "warmup": 10}
    return AdaptationSettings(**{**values, **changes})


def run(
    now: Occasion,
    strategy: AbstractStrategy,
    state=None,
    *,
    objective=None,
    checkpoint=None,
    **changes,
):
    with precision.scope():
        return adapt(
            now,
            strategies=[strategy],
            states=[state],
            objective=objective if objective is not None else Divergence(),
            settings=settings(**changes),
            checkpoint=checkpoint,
            progressbar=False,
        )


@pytest.mark.parametrize(
    "strategy",
    [ElasticWeightConsolidation(strength=0.05, simulations=64), OnlineLaplace(simulations=64)],
)
def test_consolidated_weights_are_where_the_two_pulls_cancel(occasion, layout, strategy):
    now = occasion(task_of(layout, [3, 5, 6]))
    found = run(now, strategy, steps=1500, patience=None)
    with precision.scope():
        state = strategy.begin(None, now)
        y = now.task.values["y"]

        def loss(q: Line):
            each = [Divergence()(q, None, Example({"y": v}), None).loss for v in y]
            return sum(each) / len(each)

        pull = numbers(jax.grad(lambda q: strategy.penalty(state, q))(found.amortizer))
        gradient = numbers(jax.grad(loss)(found.amortizer))
        assert np.abs(gradient).max() > 0.02  # held back from the optimum of the task
        np.testing.assert_allclose(gradient, -pull, atol=2e-3)


def test_no_strength_is_naive_and_all_strength_moves_nothing(occasion, layout):
    now = occasion(task_of(layout, [3, 5, 6]))
    naive = run(now, Naive(), steps=100).amortizer.numbers
    weak = run(now, ElasticWeightConsolidation(strength=0.0), steps=100).amortizer.numbers
    np.testing.assert_allclose(weak, naive, rtol=1e-6)
    strong = run(now, ElasticWeightConsolidation(strength=1e6), steps=400).amortizer.numbers
    assert np.abs(strong - OFF.numbers).max() < 0.05 * np.abs(naive - OFF.numbers).max()


def test_synaptic_intelligence_shares_out_the_fall_of_the_loss(occasion, layout):
    now = occasion(task_of(layout, [3, 5, 6]))
    strategy = SynapticIntelligence(damping=0.01)
    found = run(now, strategy, learning_rate=1e-3, steps=600, warmup=0, patience=None)
    state, y = found.states[0], now.task.values["y"]
    fall = OFF.divergence(y).mean() - found.amortizer.divergence(y).mean()
    moved = found.amortizer.numbers - OFF.numbers
    shares = numbers(state.importance) * (moved**2 + 0.01)
    assert fall > 0.1
    assert shares.sum() == pytest.approx(fall, rel=0.02)  # small steps: the integral is the fall
    np.testing.assert_array_equal(numbers(state.anchor), found.amortizer.numbers)
    # the next task is held back by it
    other = occasion(task_of(layout, [-3, -5]), found.amortizer)
    held = run(other, SynapticIntelligence(strength=1e6), state).amortizer.numbers
    free = run(other, Naive()).amortizer.numbers
    change = np.abs(held - found.amortizer.numbers).max()
    assert change < 0.1 * np.abs(free - found.amortizer.numbers).max()


def test_online_laplace_adds_the_information_of_every_task(occasion, layout, density):
    strategy = OnlineLaplace(prior_precision=0.5, simulations=0, draws=50)
    one, two = task_of(layout, [1, 2]), task_of(layout, [5, 6, 7], seed=1)
    with precision.scope():
        start = strategy.begin(None, occasion(one))
        np.testing.assert_array_equal(numbers(start.precision), 0.5)
        after = strategy.end(start, None, occasion(one, EXACT))
        new = importance(EXACT, density, one, "fisher", draws=50, seed=0)
        again = strategy.begin(after, occasion(two, EXACT))
        penalty = float(strategy.penalty(again, line(*(EXACT.numbers + [0.1, 0, 0]))))
    np.testing.assert_allclose(numbers(after.precision), 0.5 + 2 * numbers(new), rtol=1e-5)
    assert penalty == pytest.approx(float(after.precision.a) * 0.1**2 / (2 * 3), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ElasticWeightConsolidation(importance="guess"), "'fisher' or"),  # type: ignore[arg-type]
        (lambda: ElasticWeightConsolidation(strength=-1.0), "strength of at least 0"),
        (lambda: ElasticWeightConsolidation(decay=2.0), "decay between 0 and 1"),
    ],
)
def test_hyper_parameters_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=f"ElasticWeightConsolidation: .*{message}"):
        make()


# --- the pool ------------------------------------------------------------------------------------


def test_tasks_count_alike_in_the_pool(occasion, layout):
    new, old = task_of(layout, np.arange(4)), task_of(layout, [50, 60, 70], seed=1)
    memory = Memory().add(old.select([0]), "a").add(old.select([1, 2]), "b")
    plan = Replay(capacity=6).rehearsal(memory)
    with precision.scope():
        found = gather(occasion(new), np.ones(4, bool), plan, Divergence(), progressbar=False)
    assert found.stored == 3
    np.testing.assert_allclose(found.pool.weights, [0.25] * 4 + [1, 0.5, 0.5])
    # by dataset: the paper's
    plain = Replay(capacity=6, weighting="dataset").rehearsal(memory)
    with precision.scope():
        keep = np.array([True, False, True, True])
        found = gather(occasion(new), keep, plain, Divergence(), progressbar=False)
    np.testing.assert_array_equal(found.pool.weights, [1, 0, 1, 1, 1, 1, 1])


# --- the teacher ----------------------------------------------------------------------------------


def test_teachers_labels_are_draws_of_the_posterior(density, layout, normal_mean):
    task = task_of(layout, [-2, 0, 1, 4])
    teacher = TeacherDistillation(labels=1000)
    with precision.scope():
        found = teacher.label(task, Teaching(OFF, density, 0, False))  # type: ignore[arg-type]
    mean, sd = normal_mean.exact(task.values["y"])
    assert found.z.shape == (4, 1000, 1) and found.trusted.all()
    np.testing.assert_allclose(found.z[..., 0].mean(axis=1), mean, atol=4 * sd[0] / np.sqrt(500))
    np.testing.assert_allclose(found.z[..., 0].std(axis=1), sd, rtol=0.1)


def test_a_network_learns_from_its_teacher(occasion, layout):
    now = occasion(task_of(layout, [-2, 0, 1, 4]))
    found = run(now, Naive(), objective=TeacherDistillation())
    assert found.record.untrusted == () and found.record.skipped == 0
    assert (found.amortizer.divergence(now.task.values["y"]) < 0.03).all()
    with pytest.raises(ValueError, match="expected an example with labels"):
        TeacherDistillation()(OFF, None, Example({"y": y_of(0)[0]}), jax.random.key(0))


def test_a_teacher_that_trusts_nothing_teaches_nothing(occasion, layout):
    class Distrustful(TeacherDistillation):
        def label(self, datasets, now):
            found = super().label(datasets, now)
            return found._replace(trusted=np.zeros(len(datasets), bool))

    now = occasion(task_of(layout, [-2, 0]))
    with pytest.raises(ValueError, match="the teacher trusts its draws for none of the 2 datasets"):
        run(now, Naive(), objective=Distrustful())


def test_teacher_with_replay(occasion, layout):
    now = occasion(task_of(layout, [1, 2]))
    memory = Memory().add(task_of(layout, [6], seed=4), "old")
    strategy = Replay(capacity=3, simulations=4)
    found = run(now, strategy, memory, objective=TeacherDistillation(), batch_size=16)
    assert found.record.rehearsed == 1
    y = np.concatenate([now.task.values["y"], memory.stored().values["y"]])
    assert (found.amortizer.divergence(y) < 0.05).all()


# --- steps ----------------------------------------------------------------------------------------


def test_training_stops_where_there_is_no_more_progress(occasion, layout, monkeypatch):
    monkeypatch.setattr("pmcl.continual.adaptation._RIGHT", 2.0)  # else it does not begin
    now = occasion(task_of(layout, [1, 2]), EXACT)
    found = run(now, Naive(), objective=PathGradient(), steps=1000, patience=2)
    assert found.record.stopped == "no more progress"
    # twice at each of three rates, and the first look, which has nothing to compare with
    assert found.record.steps <= 25 * 7
    assert len(found.record.held_back) == found.record.steps / 25
    all_steps = run(now, Naive(), objective=PathGradient(), steps=100, patience=None)
    assert all_steps.record.steps == 100 and all_steps.record.stopped == "all steps taken"


def test_the_efficiency_of_held_back_draws_is_recorded(occasion, layout):
    now = occasion(task_of(layout, [1, 2]), OFF)
    found = run(now, Naive(), objective=PathGradient(), steps=200, patience=None).record
    assert found.efficiency.shape == found.held_back.shape == (8,)
    assert 0.99 < found.efficiency[-1] <= 1
    # where nothing is learned it stays that of OFF at the two datasets, by many draws of its own
    still = {"steps": 25, "learning_rate": 1e-9, "patience": None}
    (stayed,) = run(now, Naive(), objective=PathGradient(), **still).record.efficiency
    y = now.task.values["y"]
    mean, sd = (1 / 4 + y.sum(axis=1)) / PRECISION, PRECISION**-0.5
    q_mean, q_sd = OFF.a + OFF.b * y.mean(axis=1), float(np.exp(OFF.c))
    z = q_mean[:, None] + q_sd * np.random.default_rng(0).normal(size=(2, 100_000))
    weight = stats.norm.pdf(z, mean[:, None], sd) / stats.norm.pdf(z, q_mean[:, None], q_sd)
    expected = (weight.mean(axis=1) ** 2 / (weight**2).mean(axis=1)).mean()
    assert expected < 0.9 and abs(stayed - expected) < 0.1
    ratio = np.random.default_rng(0).normal(size=(3, 400))
    weight = np.exp(ratio)
    expected = weight.sum(axis=1) ** 2 / (weight**2).sum(axis=1) / 400
    there = np.ones(400, bool)
    np.testing.assert_allclose([efficiency(r, there) for r in ratio], expected, rtol=1e-5)
    # draws without a finite density count as nothing
    half = np.arange(400) % 2 == 0
    assert float(efficiency(np.where(half, 700.0, np.nan), half)) == 0.5
    assert float(efficiency(np.full(400, np.nan), ~there)) == 0.0


def test_best_weights_are_restored_where_asked(occasion, layout):
    now = occasion(task_of(layout, [1, 2]), EXACT)
    wild = {"objective": PathGradient(), "learning_rate": 2.0, "steps": 50, "warmup": 0}
    y = now.task.values["y"]
    last = run(now, Naive(), patience=None, **wild)
    best = run(now, Naive(), patience=None, restore_best=True, **wild)
    np.testing.assert_array_equal(best.record.held_back, last.record.held_back)
    at = int(np.argmin(best.record.held_back))
    if at == 0:
        assert not np.array_equal(best.amortizer.numbers, last.amortizer.numbers)
    assert np.isfinite(best.amortizer.divergence(y)).all()


def test_another_strength_and_another_task_compile_nothing(occasion, layout):
    traces: list[int] = []
    objective = Divergence(traced=lambda: traces.append(1))
    counts = []
    for t, strength in enumerate((0.1, 10.0, 3.0)):
        now = occasion(task_of(layout, t + np.arange(3), seed=t))
        strategy = ElasticWeightConsolidation(strength=strength, simulations=16)
        run(now, strategy, objective=objective, steps=50, learning_rate=0.01 / (t + 1))
        counts.append(len(traces))
    assert counts[0] >= 1 and counts == [counts[0]] * 3


def test_an_adaptation_that_was_cut_off_ends_as_if_it_had_not_been(occasion, layout, tmp_path):
    now = occasion(task_of(layout, [1, 2]))
    strategy, path = Replay(capacity=2, simulations=2), tmp_path / "task.checkpoint"
    options = {"objective": PathGradient(), "steps": 250, "patience": 3}
    whole = run(now, strategy, **options)

    def cut(*arguments, **keywords):
        if writes and len(writes) >= 1:
            raise KeyboardInterrupt
        writes.append(1)
        return write(*arguments, **keywords)

    writes: list[int] = []
    write = training_run.write_checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "write_checkpoint", cut)
        with pytest.raises(KeyboardInterrupt):
            run(now, strategy, checkpoint=path, **options)
    assert path.exists()
    resumed = run(now, strategy, checkpoint=path, **options)
    np.testing.assert_array_equal(resumed.amortizer.numbers, whole.amortizer.numbers)
    np.testing.assert_array_equal(resumed.record.held_back, whole.record.held_back)
    np.testing.assert_array_equal(resumed.record.losses, whole.record.losses)
    again = run(now, strategy, checkpoint=path, **options)  # nothing left to do
    np.testing.assert_array_equal(again.amortizer.numbers, whole.amortizer.numbers)
    other = occasion(task_of(layout, [1, 3]))
    with pytest.raises(ValueError, match="belongs to another run.*'data'"):
        run(other, strategy, checkpoint=path, **options)
    with pytest.raises(ValueError, match="belongs to another run.*'simulations'"):
        run(now, Replay(capacity=2, simulations=3), checkpoint=path, **options)


def test_a_checkpoint_is_of_one_strength_and_of_what_was_learned_before(occasion, layout, tmp_path):
    now, strategy = occasion(task_of(layout, [1, 2])), ElasticWeightConsolidation(strength=0.05)
    options = {"steps": 25, "patience": None}
    state = run(now, strategy, **options).states[0]
    more = run(now, strategy, state, **options).states[0]
    path = tmp_path / "task.checkpoint"
    run(now, strategy, state, checkpoint=path, **options)
    run(now, strategy, state, checkpoint=path, **options)  # the same: nothing left to do
    for other, before in ((ElasticWeightConsolidation(strength=5.0), state), (strategy, more)):
        with pytest.raises(ValueError, match="belongs to another run.*'protection'"):
            run(now, other, before, checkpoint=path, **options)


# --- the posterior over several tasks -------------------------------------------------------------


@pytest.fixture
def posterior(normal_mean) -> AmortizedPosterior:
    return posterior_of(normal_mean.compiled, normal_mean.simulator)


def learn(posterior: AmortizedPosterior, task: Task, name: str, **options) -> AmortizedPosterior:
    options = {"steps": 50, "learning_rate": 0.05, "clip": 10.0, "warmup": 5} | options
    return posterior.adapt(task, name=name, progressbar=False, **options)


SMALL = Replay(capacity=4)


def test_a_strategy_starts_from_what_is_stored_or_says_what_is_missing(posterior, layout):
    one, two = task_of(layout, [1, 2]), task_of(layout, [5, 6], seed=1)
    kept = learn(posterior, one, "u", strategy=SMALL)
    # importance comes from the stored datasets
    both = learn(kept, two, "v", strategy=(SMALL, ElasticWeightConsolidation()))
    assert [s.kind for s in both.states] == ["Replay", "ElasticWeightConsolidation"]
    assert both.strategy == (SMALL, ElasticWeightConsolidation())
    assert learn(both, one, "w").strategy == both.strategy  # goes on with both
    # the share in a fall of the loss does not
    for strategy in (SynapticIntelligence(), (SMALL, SynapticIntelligence())):
        with pytest.raises(ValueError, match="Intelligence cannot go on.*by steps of training"):
            learn(kept, two, "v", strategy=strategy)
    # nothing is stored of a task that was learned naively
    naive = learn(posterior, one, "u", strategy=Naive())
    for strategy in (SMALL, ElasticWeightConsolidation(), SynapticIntelligence()):
        with pytest.raises(ValueError, match=f"{type(strategy).__name__} cannot go on.*'u'"):
            learn(naive, two, "v", strategy=strategy)
    # nor of one that came in between
    between = learn(kept, two, "v", strategy=Naive())
    assert between.memory is kept.memory
    with pytest.raises(ValueError, match="Replay cannot go on from what is stored.*'v'"):
        learn(between, one, "w", strategy=SMALL)
    # importance of several tasks is forgotten with one of them
    importance = learn(posterior, one, "u", strategy=ElasticWeightConsolidation())
    importance = learn(importance, two, "v").forget("u")
    with pytest.raises(ValueError, match=r"of 'v': .*`forget`.*pmcl\.Naive\(\).*own"):
        learn(importance, one, "w")
    assert learn(importance, one, "w", strategy=Naive()).records[-1].name == "w"
    # importance of another kind cannot be compared
    fisher = learn(posterior, one, "u", strategy=ElasticWeightConsolidation())
    other = ElasticWeightConsolidation(importance="self_consistency")
    with pytest.raises(ValueError, match="'fisher', not 'self_consistency'.*or go on with"):
        learn(fisher, two, "v", strategy=other)


def test_test_time_adaptation_leaves_no_trace(posterior, layout):
    one, two = task_of(layout, [1, 2]), task_of(layout, [5, 6], seed=1)
    adapted = learn(posterior, one, "u", strategy=SMALL)
    options = {"steps": 50, "learning_rate": 0.05, "clip": 10.0, "warmup": 5, "progressbar": False}
    found = adapted.at_test_time(two, random_seed=3, **options)
    fresh = learn(posterior, two, "test time", strategy=Naive(), random_seed=3)
    np.testing.assert_array_equal(found.amortizer.numbers, fresh.amortizer.numbers)
    assert len(found.memory) == 0 and [r.name for r in found.records] == ["test time"]
    assert len(adapted.memory) == 1 and [r.name for r in adapted.records] == ["u"]


def test_learning_rate_may_fall_with_the_task(posterior, layout):
    task = task_of(layout, [1, 2])
    rates = []

    def rate(index: int) -> float:
        rates.append(index)
        return 0.05 / (index + 1)

    now = posterior
    for name in "uvw":
        now = learn(now, task, name, learning_rate=rate, strategy=SMALL)
    assert rates == [0, 1, 2]
    same = learn(learn(posterior, task, "u", strategy=SMALL), task, "v", learning_rate=0.025)
    second = learn(
        learn(posterior, task, "u", strategy=SMALL, learning_rate=rate),
        task,
        "v",
        learning_rate=rate,
    )
    np.testing.assert_array_equal(same.amortizer.numbers, second.amortizer.numbers)


def test_history_shows_what_is_kept_and_what_is_forgotten(posterior, layout, density):
    tasks = {
        n: task_of(layout, m, seed=i)
        for i, (n, m) in enumerate(zip("uv", ([6, 6], [-6, -6]), strict=True))
    }
    now = posterior
    for name, task in tasks.items():
        now = learn(now, task, name, strategy=SMALL, steps=300)
    history = now.history
    assert {*history.children} == {"adaptation", "losses", "datasets", "retention", "transfer"}
    retention = history["retention"].to_dataset()
    assert [*retention["after"].values] == ["pretraining", "u", "v"]
    with precision.scope():
        seed = now.records[1]
        stored = quality(now.amortizer, density, now.memory.stored().select([0]), seed=2000)  # type: ignore[arg-type]
        first = quality(OFF, density, tasks["v"], seed=2000)  # type: ignore[arg-type]
    assert seed.name == "v"
    assert float(retention["sc_variance"].sel(after="v", task="u")) == pytest.approx(
        float(stored.sc_variance[0])
    )
    assert float(retention["sc_variance"].sel(after="pretraining", task="v")) == pytest.approx(
        float(first.sc_variance.mean())
    )
    assert np.isfinite(retention["efficiency"].sel(after="u", task="v"))  # before it was learned
    np.testing.assert_array_equal(retention["n_datasets"].sel(after="v"), [1, 2])
    expected = transfer(retention["efficiency"].values)
    assert float(history["transfer"]["forward"].sel(measure="efficiency")) == expected.forward
    losses = history["losses"]["loss"]
    assert losses.sizes["task"] == 2 and int(history["adaptation"]["steps"][0]) <= 300
    assert losses.sel(task="u").notnull().sum() == history["adaptation"]["steps"].sel(task="u")
    assert [*history["datasets"]["dataset"].values] == ["d0", "d1", "d0", "d1"]
    assert isinstance(posterior.history["adaptation"].to_dataset(), xr.Dataset)  # empty before


def test_transfer_of_a_matrix():
    matrix = [[4, 5, 6], [1, 4, 5], [2, 1, 7], [3, 3, 2]]
    found = transfer(matrix)
    assert found.backward == pytest.approx(((3 - 1) + (3 - 1)) / 2)
    assert found.forward == pytest.approx(((4 - 5) + (7 - 6)) / 2)
    alone = transfer([[1.0], [0.5]])
    assert np.isnan(alone.backward) and np.isnan(alone.forward)
    with pytest.raises(ValueError, match=r"expected shape \(tasks \+ 1, tasks\).*\(2, 2\)"):
        transfer(np.zeros((2, 2)))


def test_a_strategy_of_ones_own(posterior, layout):
    page = (Path(__file__).parents[1] / "docs" / "continual.md").read_text()
    namespace: dict = {}
    exec(page.split("```python\n")[1].split("```")[0], namespace)
    Anchor = namespace["Anchor"]  # noqa: N806  (the documentation's example)
    one, two = task_of(layout, [1, 2]), task_of(layout, [5, 6], seed=1)
    first = learn(posterior, one, "u", strategy=(SMALL, Anchor(1.0)))
    near = learn(first, two, "v", strategy=(SMALL, Anchor(1e4)))
    far = learn(first, two, "v", strategy=SMALL)
    assert near.states[1].kind == "Anchor"
    moved = [np.abs(p.amortizer.numbers - first.amortizer.numbers).max() for p in (near, far)]
    assert moved[0] < 0.3 * moved[1]
