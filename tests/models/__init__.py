"""Twenty well-known models of different kinds, as a person would write them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pymc as pm

from . import counts, psychometrics, regression, series


@dataclass(frozen=True)
class Entry:
    """A model, and what `fit_amortized` is told of it."""

    build: Callable[[], pm.Model]
    covariates: Callable[[], Mapping[str, Any]] = dict
    options: Mapping[str, str] = field(default_factory=dict)


OBS = {"exchangeable": "obs"}

CORPUS: dict[str, Entry] = {
    "eight schools": Entry(regression.eight_schools, regression.school_errors),
    "radon": Entry(regression.radon, regression.houses, OBS),
    "rat tumours": Entry(counts.rat_tumours, counts.litters, OBS),
    "golf putting": Entry(counts.golf_putting, counts.putts, OBS),
    "coal-mining disasters": Entry(series.disasters, options={"sequence": "year"}),
    "Lotka-Volterra": Entry(series.lotka_volterra, options={"sequence": "year"}),
    "SIR epidemic": Entry(series.epidemic, options={"sequence": "day"}),
    "GARCH": Entry(series.garch, options={"sequence": "day"}),
    "item response": Entry(psychometrics.item_response),
    "Rasch": Entry(psychometrics.rasch),
    "fish counts": Entry(counts.fish, counts.visits, OBS),
    "censored survival": Entry(regression.survival, regression.arms, OBS),
    "Gaussian process regression": Entry(regression.gaussian_process),
    "multinomial": Entry(counts.multinomial, options=OBS),
    "dose response": Entry(counts.dose_response, counts.doses, OBS),
    "capture-recapture": Entry(counts.capture_recapture, options=OBS),
    "Poisson regression with exposure": Entry(counts.exposure, counts.exposures, OBS),
    "robust regression": Entry(regression.robust, regression.one_predictor, OBS),
    "ordered logit": Entry(psychometrics.ordered_logit, regression.one_predictor, OBS),
    "drift diffusion": Entry(psychometrics.drift_diffusion, options=OBS),
}
