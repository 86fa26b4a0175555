"""Follow: from a PyMC model to an online posterior that knows nothing but the prior."""

from collections.abc import Sequence

import jax
import pymc as pm

from pmcl.compile import localise
from pmcl.compile.compiling import compile_model
from pmcl.compile.labelled import model_or_context
from pmcl.compile.simulable import check_simulable, need_density
from pmcl.continual import AbstractStrategy
from pmcl.data.masked import check_batches
from pmcl.online.drift import AbstractDrift, Static
from pmcl.online.families.choice import Family, chosen
from pmcl.online.families.search import GaussNewton
from pmcl.online.latent.encoder import Encoder, Latents
from pmcl.online.latent_posterior import LatentPosterior
from pmcl.online.memory import AbstractMemory
from pmcl.online.mixture import OnlineMixture
from pmcl.online.options import Options, read
from pmcl.online.posterior import OnlinePosterior
from pmcl.online.rows import Rows
from pmcl.online.search.search import Search
from pmcl.online.search.start import AbstractStart, ScatteredStart, Start
from pmcl.online.state import PRIOR, Settings, init, prepare
from pmcl.runtime.arguments import seed_of
from pmcl.runtime.precision import Precision, scope_of
from pmcl.runtime.progress import progress_bar


def fit_online(
    model: pm.Model | None = None,
    *,
    memory: AbstractMemory | None = None,
    drift: AbstractDrift | None = None,
    search: Search | GaussNewton | None = None,
    family: Family = "mean_field",
    components: int = 1,
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
) -> OnlinePosterior | LatentPosterior | OnlineMixture:
    """Compile a PyMC model whose posterior follows a stream of data.

    The posterior is a normal of the unconstrained parameters, times the likelihood of the rows in
    the memory. Updates are exact where prior and likelihood are Gaussian in the unconstrained
    parameters (every batch is looked at, until one says otherwise). Else a normal with independent
    entries (`family="mean_field"`) climbs the evidence lower bound by Adam, and one with
    covariances takes natural-gradient Gauss-Newton steps, of which tens suffice.

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
    search : Search or GaussNewton, optional
        How the lower bound is climbed: :class:`Search` by a mean field, :class:`GaussNewton` by
        the other families.
    family : {"mean_field", "low_rank", "full", "auto"}
        Of normals: with independent entries, with a precision that is a diagonal and a low-rank
        matrix, or with all covariances (up to 2,000 parameters). "auto" takes the largest that the
        number of parameters allows for, and a mean field where the others do not apply. They need
        distributions of rows whose parameters have a link, such as normal, Student t, Bernoulli,
        binomial, categorical, Poisson, negative binomial or gamma ones. Predictions of neural
        networks are then those of the network linearised where its first rows left it.
    components : int
        More than one: as many normals follow the stream, each from a start of its own, and the
        posterior is their mixture (:class:`OnlineMixture`). For models whose posterior has several
        modes, such as neural networks; it costs as much as so many streams.
    start : AbstractStart, optional
        Where a search begins for what no batch has said anything of: by default at the prior's
        mean, with local variables at random near it, with several components at random, and for a
        neural network at random (:class:`ScatteredStart`).
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
        or the effect of a group; their first dim is that of the rows. An encoder tells them. There
        is no memory then.
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
    OnlinePosterior, LatentPosterior or OnlineMixture
        A :class:`LatentPosterior` with `local`, an :class:`OnlineMixture` with several components.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be compiled, or a likelihood has no term for each row of any batch.
    TypeError
        Naming the setting that is of another kind than expected.
    ValueError
        Naming the setting that does not fit the model or the others: a memory or a start that is
        not for local variables, a family that does not apply, a `method` with a memory, a drift, a
        power or a strength, several components with local variables, a `method`, a drift that is
        learned or a start that does not scatter, a memory with a strength, a power that is not
        above 0, a strength below 0, an unknown precision, a model without observed variables or
        without a dim of rows.

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
    options = Options(
        memory, drift, search, family, start, method, row, covariates, local, encoder, power,
        strength, precision, components,
    )  # fmt: skip
    read_model, variables, row, covariates = read(model_or_context(model), options)
    check_simulable(read_model)  # what has no rows, or no prior to begin with, is refused alike
    seed = seed_of(random_seed, None)
    with scope_of("double"):
        compiled = compile_model(read_model, covariates=covariates)
        need_density(compiled, "fit_online")
        taken, search = chosen(compiled, options)
    with scope_of(precision):
        layers = localise(compiled)
        rows = Rows(compiled, row, layers if local_noise else None)
        check_batches(compiled, row)
        if start is None:
            # Units, or factors, that begin alike stay alike.
            deep = layers is not None and layers.deep
            scatter = 0.1 if variables is not None else 1.0 if components > 1 else 0.0
            start = ScatteredStart() if deep else Start(scatter=scatter)
        with progress_bar("Prior", PRIOR.steps, enabled=progressbar) as bar:
            problem = prepare(rows, jax.random.key(seed), bar.advance)
        state = init(problem, taken, getattr(search, "rank", 0))
    drift = Static() if drift is None else drift
    settings = Settings(memory, drift, search, start, method, float(power), float(strength), taken)
    if variables is not None:
        latents = Latents(variables, Encoder() if encoder is None else encoder)
        return LatentPosterior(compiled, problem, settings, precision, state, seed, latents=latents)
    stream = OnlinePosterior(compiled, problem, settings, precision, state, seed)
    return stream if components == 1 else OnlineMixture.of(stream, components)
