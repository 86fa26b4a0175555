"""Twenty well-known models: each compiles, simulates, trains and adapts."""

import warnings

import numpy as np
import pytest

import pmcl
from models import CORPUS, Entry
from pmcl.amortized.simulating import simulator_of
from pmcl.compile import finite_fraction
from pmcl.runtime import precision

FLOW = pmcl.CouplingFlow(layers=1, width=16, depth=1, knots=4, affine_width=16)
SUMMARIES = {
    "exchangeable": pmcl.DeepSet(
        outputs=8, width=16, depth=1, pooled=8, head_width=16, head_depth=1
    ),
    "sequence": pmcl.Recurrent(outputs=8, state=16, width=16),
}
# a kind each: pooling, zero inflation, a Python simulator, an ODE, rejection and censoring
QUICK = {"radon", "fish counts", "coal-mining disasters", "Lotka-Volterra", "censored survival"}


def marked(names: dict[str, Entry]) -> list:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def test_there_are_twenty() -> None:
    assert len(CORPUS) == 20


@pytest.mark.parametrize("name", marked(CORPUS))
def test_it_compiles_and_simulates(name: str) -> None:
    entry = CORPUS[name]
    with precision.scope():
        simulator = simulator_of(entry.build(), entry.covariates())
        assert finite_fraction(simulator, n=200) > 0.97
    assert (simulator.backend == "pytensor") == (name == "coal-mining disasters")


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPUS)
def test_it_trains_and_adapts(name: str) -> None:
    entry = CORPUS[name]
    summary = SUMMARIES.get(next(iter(entry.options), ""), pmcl.Flatten())
    posterior = pmcl.fit_amortized(
        entry.build(), covariates=entry.covariates(), network=pmcl.Network(summary, FLOW),
        steps=200, batch_size=32, random_seed=0, progressbar=False, **entry.options,
    )  # fmt: skip
    (record,) = posterior.pretraining
    assert record.skipped == 0 and np.isfinite(record.losses).all()
    assert record.losses[-20:].mean() < record.losses[:20].mean()
    _, data = posterior.simulator.simulate(4, random_seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        adapted = posterior.adapt(
            data, name="new", strategy=pmcl.Naive(), steps=20, random_seed=0, progressbar=False
        )
        tree = adapted.sample(data, 200, refine=False, random_seed=0, progressbar=False)
    steps = adapted.records[0].record
    assert steps.skipped == 0 and not steps.excluded
    for value in tree["posterior"].to_dataset().values():
        assert np.isfinite(value).all()
