"""Every distribution that PyMC exports: its density and its draws, and the table of the docs.

``PMCL_WRITE_TABLE=1 pytest -m slow tests/test_coverage.py`` writes the table anew.
"""

import os
import re
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pymc as pm
import pytest
from distributions import DISTRIBUTIONS, NOT_DISTRIBUTIONS
from draws import differing
from pymc_models import Case, case

from pmcl.compile import UnsupportedModelError, make_simulator, read_covariates
from pmcl.compile.conversion.graphs import host_mode
from pmcl.runtime import precision

PAGE = Path(__file__).resolve().parents[1] / "docs" / "distributions.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
DRAWS = 2000
TINY = 1e-4  # some ten statistics for each of eighty models, at fixed seeds
AGREES, JAX, HOST, NO = "agrees", "in JAX", "on PyTensor", "no"

BUILDS = {
    name: partial(lambda build: build(pm.Uniform("t", 0.5, 1.5)), build)
    for name, build in DISTRIBUTIONS.items()
}
REFUSED = {"PolyaGamma"}  # its log density is a C function
# PyMC 6.4 has no sampler of the one, and one with another covariance of the other;
# test_samplers.py has them against their densities.
NO_REFERENCE = {"CAR", "ICAR"}


class Row(NamedTuple):
    """What the table says of a distribution."""

    name: str
    density: str
    simulation: str

    def __str__(self) -> str:
        return f"| `{self.name}` | {self.density} | {self.simulation} |\n"


@cache
def compiled_case(name: str) -> Case:
    return case(BUILDS[name])


@cache
def simulated(name: str) -> tuple[str, dict[str, np.ndarray]]:
    compiled = compiled_case(name).compiled
    simulator = make_simulator(compiled, read_covariates(None, ()))
    z, data = simulator.simulate(DRAWS, random_seed=3)
    with precision.scope():
        named = jax.jit(jax.vmap(compiled.constrain))(z, data)
    return simulator.backend, {**{k: np.asarray(v) for k, v in named.items()}, **data}


def row(name: str) -> Row:
    if name in NOT_DISTRIBUTIONS:
        return Row(name, NOT_DISTRIBUTIONS[name], "")
    if name in REFUSED:
        return Row(name, NO, NO)
    return Row(name, AGREES, {"jax": JAX, "pytensor": HOST}[simulated(name)[0]])


def table_of_the_docs() -> str:
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


def test_every_exported_distribution_is_in_the_table() -> None:
    assert set(pm.distributions.__all__) == {*DISTRIBUTIONS, *NOT_DISTRIBUTIONS}
    assert re.findall(r"^\| `(\w+)`", table_of_the_docs(), re.M) == sorted(
        pm.distributions.__all__, key=str.lower
    )


supported = pytest.mark.parametrize("name", [n for n in DISTRIBUTIONS if n not in REFUSED])


@pytest.mark.slow
@supported
def test_density_and_gradient_agree_with_pymc(name: str) -> None:
    prior, joint, gradient, _ = compiled_case(name).found
    expected_prior, expected_joint, expected_gradient, _ = compiled_case(name).expected
    assert np.isfinite(expected_joint).all()
    np.testing.assert_allclose(prior, expected_prior, rtol=1e-6)
    np.testing.assert_allclose(joint - prior, expected_joint - expected_prior, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@supported
def test_draws_are_those_of_pymc(name: str) -> None:
    _, ours = simulated(name)
    assert all(np.isfinite(v).all() for v in ours.values())
    if name in NO_REFERENCE:
        return
    theirs = pm.sample_prior_predictive(
        DRAWS,
        model=compiled_case(name).model,
        random_seed=1,
        return_inferencedata=False,
        compile_kwargs={"mode": host_mode()},
    )
    # PyMC draws what transforms give names to as well
    assert differing(ours, {k: theirs[k] for k in ours}, level=TINY) == {}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_no_density_in_jax_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="Variable 'y' cannot be compiled to JAX"):
        compiled_case(name)


@pytest.mark.slow
def test_the_table_of_the_docs_is_true() -> None:
    found = "".join(str(row(name)) for name in sorted(pm.distributions.__all__, key=str.lower))
    lines = f"| distribution | log density and gradient | simulated |\n|---|---|---|\n{found}"
    if os.environ.get("PMCL_WRITE_TABLE"):
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{lines}{END}{rest.split(END)[1]}")
    assert table_of_the_docs() == lines
