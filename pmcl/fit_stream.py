"""Follow: from a PyMC model to an online posterior that knows nothing but the prior."""

from collections.abc import Sequence
from numbers import Real

import jax
import numpy as np
import pymc as pm

from pmcl.compile import localise
from pmcl.compile.latent import separate
from pmcl.compile.model import compile_model
from pmcl.compile.refuse import model_or_context
from pmcl.compile.variables import dims_of
from pmcl.continual import AbstractStrategy
from pmcl.latent_stream import LatentPosterior
from pmcl.online import inference, point
from pmcl.online.drift import AbstractDrift, Static
from pmcl.online.inference import Settings
from pmcl.online.latent import Encoder, Latents
from pmcl.online.memory import AbstractMemory
from pmcl.online.projection import Search
from pmcl.online.rows import Rows
from pmcl.online.start import AbstractStart, MaximumLikelihoodStart, ScatteredStart, Start
from pmcl.posterior import seed_of
from pmcl.progress import progress_bar
from pmcl.stream import OnlinePosterior, Precision, scope_of


def fit_online(
    model: pm.Model | None = None,
    *,
    memory: AbstractMemory | None = None,
    drift: AbstractDrift | None = None,
    search: Search | None = None,
    start: AbstractStart | None = None,
    method: AbstractStrategy | None = None,
    row: str | None = None,
    covariates: Sequence[str] | None = None,
    local: str | Sequence[str] | None = None,
    encoder: Encoder | None = None,
    power: float = 1.0,
    strength: float = 1.0,
    local_noise: bool = True,
    precision: Precision = "double",
    random_seed: int | None = None,
    progressbar: bool = True,
) -> OnlinePosterior:
    """Compile a PyMC model whose posterior follows a stream of data.

    The posterior is a normal of the unconstrained parameters with independent entries, times the
    likelihood of the rows in the memory. Updates are exact where prior and likelihood are Gaussian
    in the unconstrained parameters (every batch is looked at, until one says otherwise); else the
    evidence lower bound is climbed by Adam.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context when not given. Its likelihood has a term for each row.
    memory : AbstractMemory, optional
        Which rows are stored: :class:`RandomCoreset`, :class:`KCenterCoreset` or
        :class:`ResidualMemory`; none by default.
    drift : AbstractDrift, optional
        What happens between batches: :class:`Static` (default), :class:`BayesianForgetting`,
        :class:`OrnsteinUhlenbeck` or :class:`Wiener`.
    search : Search, optional
        How the lower bound is climbed.
    start : AbstractStart, optional
        Where a search begins for what no batch has said anything of: by default at the prior's
        mean, with local variables at random near it, and for a neural network at random
        (:class:`ScatteredStart`).
    method : ElasticWeightConsolidation, OnlineLaplace, SynapticIntelligence or Naive, optional
        In place of variational inference: one value of the parameters, held near earlier ones by
        a quadratic penalty (diagonal Laplace propagation is the second) or, with `Naive`, not at
        all. Baselines, for which there is no memory; of their fields strength, decay and damping
        count.
    row : str, optional
        The dim along which data arrive; the first one of the first observed variable by default.
    covariates : sequence of str, optional
        The `pm.Data` that come with every batch; by default those along `row`.
    local : str or sequence of str, optional
        Free variables of which every row has its own value, such as the latent vector of an image
        or the effect of a group; their first dim is that of the rows. An encoder tells them, and
        values of the observed variables may be missing. There is no memory then.
    encoder : Encoder, optional
        The network for that.
    power : float
        Of every row's likelihood, as if the row had come so often; 1 is Bayes' rule. In networks,
        where normals with independent entries hold too little of what earlier batches said,
        more than 1 holds more of it and learns more of each batch. What is then said of
        parameters is too narrow by design.
    strength : float
        Factor of what holds parameters' means near those of earlier batches: of the precisions
        beyond the prior's. 1 is Bayes' rule; more is for networks too, beside a power.
    local_noise : bool
        Whether the noise of linear layers (`x @ W + b`, with weights that are free variables
        without a transform) is drawn in place of their weights', where that is found to be valid.
    precision : {"double", "single"}
        Of all arithmetic; neural networks are faster in single.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    OnlinePosterior
        A :class:`LatentPosterior` with `local`.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be compiled, or a likelihood has no term for each row.
    TypeError
        Naming the setting that is of another kind than expected.
    ValueError
        Naming the setting that does not fit the model or the others: a memory or a start that is
        not for local variables, a `method` with a memory, a drift, a power or a strength, a memory
        with a strength, a power that is not above 0, a strength below 0, an unknown precision, a
        model without observed variables or without a dim of rows.

    References
    ----------
    Nguyen, Li, Bui & Turner (2018), Variational continual learning; Kurle, Cseke, Klushyn, van der
    Smagt & Günnemann (2020), Continual learning with Bayesian neural networks for non-stationary
    data. `power` and `strength`: Loo, Swaroop & Turner (2021), Generalized variational continual
    learning, whose beta is the power's inverse and whose lambda is the strength.

    Examples
    --------
    >>> stream = pmcl.fit_online(model, memory=pmcl.KCenterCoreset(200))  # doctest: +SKIP
    >>> for batch, time in batches:  # doctest: +SKIP
    ...     stream = stream.update(batch, time=time)
    """
    model = model_or_context(model)
    for name, value, kind, example in (
        ("memory", memory, AbstractMemory, "KCenterCoreset(200)"),
        ("drift", drift, AbstractDrift, "Static()"),
        ("search", search, Search, "Search(steps=1000)"),
        ("start", start, AbstractStart, "Start()"),
        ("encoder", encoder, Encoder, "Encoder()"),
    ):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name}: expected None or such as pmcl.{example}, got {value!r}.")
    if isinstance(local, bool):
        raise ValueError(
            f"local: expected names of variables, got {local}; whether noise of linear layers is "
            "drawn in place of their weights' is `local_noise`."
        )
    names = (local,) if isinstance(local, str) else tuple(local or ())
    if not names and encoder is not None:
        raise ValueError(
            "encoder: expected `local` to name the variables that it tells, none came."
        )
    if names:
        if memory is not None:
            raise ValueError(f"memory: with local variables expected none, got {memory!r}.")
        if isinstance(start, MaximumLikelihoodStart):
            raise ValueError(
                "start: with local variables the likelihood is an integral; expected Start or "
                f"ScatteredStart, got {start!r}."
            )
        model, variables = separate(model, names)
        dim = dims_of(model, model[names[0]])[0]
        if row not in (None, dim):
            raise ValueError(
                f"row: expected {dim!r}, the first dim of the local variables, got {row!r}."
            )
        row = dim
    if precision not in ("double", "single"):
        raise ValueError(f"precision: expected 'double' or 'single', got {precision!r}.")
    if not model.observed_RVs:
        raise ValueError("fit_online: expected a model with observed variables, there are none.")
    row = dims_of(model, model.observed_RVs[0])[0] if row is None and _has_dims(model) else row
    if row is None:
        raise ValueError(
            f"fit_online: expected {model.observed_RVs[0].name!r} to have a dim of rows, it is a "
            "single value."
        )
    if covariates is None:
        covariates = [v.name for v in model.data_vars if row in dims_of(model, v)]
        values = {model.rvs_to_values[rv].name for rv in model.observed_RVs}
        covariates = [c for c in covariates if c not in values]
    if method is not None and (memory is not None or not isinstance(method, point.METHODS)):
        raise ValueError(
            f"method: expected one of {[m.__name__ for m in point.METHODS]} and no memory, got "
            f"{method!r} and {memory!r}."
        )
    if method is not None and not isinstance(drift, Static | None):
        raise ValueError(
            f"drift: with a method that follows one value of the parameters expected Static(), got "
            f"{drift!r}: there is no distribution that could widen."
        )
    if isinstance(power, bool) or not isinstance(power, Real) or not 0 < power < np.inf:
        raise ValueError(f"power: expected a number above 0, got {power!r}.")
    if isinstance(strength, bool) or not isinstance(strength, Real) or not 0 <= strength < np.inf:
        raise ValueError(f"strength: expected a number of at least 0, got {strength!r}.")
    for name, factor in (("power", power), ("strength", strength)):
        if method is not None and factor != 1:
            raise ValueError(
                f"{name}: with a method that follows one value of the parameters expected 1, got "
                f"{factor!r}: what holds it has a strength of its own."
            )
    if memory is not None and strength != 1:
        raise ValueError(
            f"strength: with a memory expected 1, got {strength!r}: stored rows are not held."
        )
    seed = seed_of(random_seed, None)
    search = Search() if search is None else search
    with scope_of("double"):
        compiled = compile_model(model, covariates=covariates)
    with scope_of(precision):
        layers = localise(compiled)
        rows = Rows(compiled, row, layers if local_noise else None)
        if start is None:
            # Units, or factors, that begin alike stay alike.
            deep = layers is not None and layers.deep
            start = ScatteredStart() if deep else Start(scatter=0.1 if names else 0.0)
        with progress_bar("Prior", inference.PRIOR.steps, enabled=progressbar) as bar:
            problem = inference.prepare(rows, jax.random.key(seed), bar.advance)
        state = inference.init(problem)
    drift = Static() if drift is None else drift
    settings = Settings(memory, drift, search, start, method, float(power), float(strength))
    if names:
        latents = Latents(variables, Encoder() if encoder is None else encoder)
        return LatentPosterior(compiled, problem, settings, precision, state, seed, latents=latents)
    return OnlinePosterior(compiled, problem, settings, precision, state, seed)


def _has_dims(model: pm.Model) -> bool:
    return model.observed_RVs[0].type.ndim > 0
