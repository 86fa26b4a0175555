"""Values outside of what a distribution takes, marks of what is missing, types, indices."""

import numpy as np
import pymc as pm
import xarray as xr
from pymc.distributions.transforms import ordered
from situation import Read, Refused, Situation, Warned, counts, one_row_each, reals


def positive() -> pm.Distribution:
    return pm.HalfNormal("s")


def real() -> pm.Distribution:
    return pm.Normal("a")


def y(*values: float) -> dict[str, np.ndarray]:
    return {"y": np.array(values)}


def outside(takes: str, value: str, row: int, hint: str = "") -> Refused:
    return Refused(
        f"Variable 'y' of dataset '0': expected values .* takes, {takes}, got {value} in row {row}"
        f".*{hint}"
    )


LIKELIHOODS = {
    "poisson": lambda: pm.Poisson("y", positive(), **counts()),
    "negative binomial": lambda: pm.NegativeBinomial("y", mu=positive(), alpha=2, **counts()),
    "geometric": lambda: pm.Geometric("y", pm.Beta("p", 1, 1), **counts()),
    "bernoulli": lambda: pm.Bernoulli("y", logit_p=real(), **counts()),
    "binomial": lambda: pm.Binomial("y", 5, pm.Beta("p", 1, 1), **counts()),
    "binomial of rows": lambda: pm.Binomial(
        "y", np.array([1, 2, 3, 4]), pm.Beta("p", 1, 1), **counts()
    ),
    "beta-binomial": lambda: pm.BetaBinomial("y", positive(), 2, 5, **counts()),
    "ordered": lambda: pm.OrderedLogistic(
        "y", real(), pm.Normal("c", shape=2, transform=ordered, initval=[-1.0, 1.0]), **counts()
    ),
    "categorical": lambda: pm.Categorical("y", pm.Dirichlet("p", np.ones(3)), **counts()),
    "discrete uniform": lambda: pm.DiscreteUniform("y", 1, 10 + 0 * positive(), **counts()),
    "zero-inflated": lambda: pm.ZeroInflatedPoisson("y", 0.5, positive(), **counts()),
    "hurdle": lambda: pm.HurdleGamma("y", 0.5, positive(), 1, **reals()),
    "exponential": lambda: pm.Exponential("y", positive(), **reals()),
    "log-normal": lambda: pm.LogNormal("y", real(), 1, **reals()),
    "gamma": lambda: pm.Gamma("y", mu=positive(), sigma=1, **reals()),
    "gamma that is exponential": lambda: pm.Gamma("y", 1, positive(), **reals()),
    "weibull": lambda: pm.Weibull("y", positive(), 1, **reals()),
    "inverse gamma": lambda: pm.InverseGamma("y", 3, positive(), **reals()),
    "wald": lambda: pm.Wald("y", positive(), 1, **reals()),
    "pareto": lambda: pm.Pareto("y", positive(), 0.2, **reals()),
    "half-cauchy": lambda: pm.HalfCauchy("y", positive(), **reals()),
    "beta": lambda: pm.Beta("y", positive(), 2, **reals()),
    "uniform": lambda: pm.Uniform("y", 0, positive(), **reals()),
    "von Mises": lambda: pm.VonMises("y", real(), 1, **reals()),
    "truncated": lambda: pm.Truncated("y", pm.Normal.dist(real(), 1), 0, 5, **reals()),
    "censored": lambda: pm.Censored("y", pm.Normal.dist(real(), 1), None, 5, **reals()),
    "mixture": lambda: pm.Mixture(
        "y", [0.5, 0.5], [pm.Exponential.dist(positive()), pm.Gamma.dist(2, 1)], **reals()
    ),
    "normal": lambda: pm.Normal("y", real(), positive(), **reals()),
    "triangular": lambda: pm.Triangular("y", 0, 1, c=pm.Beta("p", 1, 1), **reals()),
    "own density": lambda: pm.CustomDist(
        "y", positive(), logp=own_density, random=own_draws, **reals()
    ),
}
MODELS = {name: one_row_each(likelihood) for name, likelihood in LIKELIHOODS.items()}


def own_density(value, s):
    return pm.math.switch(value > 0, pm.math.log(s) - s * value, -np.inf)


def own_draws(s, rng=None, size=None):
    return rng.exponential(1 / s, size=size)


ONE_MORE = "Numbers counted from 1 are the likely cause"
MISSING = "often stands for a missing value: write NaN"
PANDAS = "-1 is what pandas gives to a missing category"

# model, values, what comes
TAKEN = [
    ("poisson", (0, 3, 1, 2), None),
    ("poisson", (0, -1, 2, 3), outside("whole numbers from 0 up", "-1", 1)),
    ("poisson", (0, 1, 2, -999), outside("whole numbers from 0 up", "-999", 3, MISSING)),
    ("negative binomial", (0, 1, -3, 2), outside("whole numbers from 0 up", "-3", 2)),
    ("geometric", (1, 2, 0, 4), outside("whole numbers from 1 up", "0", 2)),
    ("bernoulli", (0, 1, 1, 0), None),
    ("bernoulli", (True, False, True, True), None),
    ("bernoulli", (1, 2, 2, 1), outside("whole numbers from 0 to 1", "2", 1, ONE_MORE)),
    ("bernoulli", (0, 1, -1, 0), outside("whole numbers from 0 to 1", "-1", 2, PANDAS)),
    ("binomial", (0, 5, 5, 1), None),
    ("binomial", (0, 5, 6, 1), outside("whole numbers from 0 to 5", "6", 2)),
    ("binomial of rows", (1, 2, 3, 4), None),
    ("binomial of rows", (1, 3, 3, 4), outside("whole numbers from 0 to 2", "3", 1)),
    ("beta-binomial", (0, 9, 6, 1), outside("whole numbers from 0 to 5", "9", 1)),
    ("ordered", (0, 1, 2, 0), None),
    ("ordered", (1, 2, 3, 1), outside("whole numbers from 0 to 2", "3", 2, ONE_MORE)),
    ("ordered", (0, -1, 2, 1), outside("whole numbers from 0 to 2", "-1", 1, PANDAS)),
    ("categorical", (1, 2, 3, 1), outside("whole numbers from 0 to 2", "3", 2, ONE_MORE)),
    ("discrete uniform", (1, 2, 0, 1), outside("whole numbers from 1 up", "0", 2)),
    ("zero-inflated", (0, 3, 0, 1), None),
    ("zero-inflated", (0, 3, -2, 1), outside("0 or whole numbers from 0 up", "-2", 2)),
    ("hurdle", (0, 3, 0, 1), None),
    ("hurdle", (0, 3, -2, 1), outside("0 or numbers above 0", "-2", 2)),
    ("exponential", (0, 3, 1, 1), None),
    ("exponential", (0, -3, 1, 1), outside("numbers from 0 up", "-3", 1)),
    ("log-normal", (1, 2, 0, 1), outside("numbers above 0", "0", 2)),
    ("gamma", (1, 2, 0, 1), outside("numbers above 0", "0", 2)),
    ("gamma that is exponential", (1, 2, 0, 1), None),
    ("weibull", (1, 0, 2, 1), outside("numbers above 0", "0", 1)),
    ("inverse gamma", (1, 0, 2, 1), outside("numbers above 0", "0", 1)),
    ("wald", (1, 0, 2, 1), outside("numbers above 0", "0", 1)),
    ("pareto", (0.1, 1, 2, 1), outside("numbers from 0.2 up", "0.1", 0)),
    ("half-cauchy", (0.1, 1, -2, 1), outside("numbers from 0 up", "-2", 2)),
    ("beta", (0.1, 0.5, 0.999, 0.2), None),
    ("beta", (0.1, 0.5, 0.3, 0), outside(r"numbers from 0 to 1 \(ends excluded\)", "0", 3)),
    ("beta", (0.1, 1, 0.3, 0.1), outside(r"numbers from 0 to 1 \(ends excluded\)", "1", 1)),
    ("beta", (10, 50, 30, 1), outside(r"numbers from 0 to 1 \(ends excluded\)", "10", 0)),
    ("uniform", (0.1, 7, 0.3, 0), None),
    ("uniform", (0.1, 7, -0.3, 0), outside("numbers from 0 up", "-0.3", 2)),
    ("von Mises", (0.1, 170, -3, 0), outside("numbers from -3.14159 to 3.14159", "170", 1)),
    ("truncated", (0.1, 5, 1, 0), None),
    ("truncated", (0.1, 5, 1, -0.1), outside("numbers from 0 to 5", "-0.1", 3)),
    ("censored", (0.1, 5, -9, 5), None),
    ("censored", (0.1, 5, 5.5, -9), outside("numbers up to 5", "5.5", 2)),
    ("mixture", (0.1, 5, 1, 0), None),
    ("mixture", (0.1, 5, -1, 0), outside("numbers from 0 up or numbers above 0", "-1", 2)),
    ("normal", (-5, 0, 3, 1e5), None),
    ("triangular", (0.2, 0.5, 0.1, 0.7), None),
    ("triangular", (0.2, 0.5, 1.1, 0.7), Refused("'y' of dataset '0': got 1.1 in row 2.*zero")),
    ("own density", (0.2, 0.5, 1.1, 0.7), None),
    ("own density", (0.2, 0, 1.1, 0.7), Refused("'y' of dataset '0': got 0 in row 1.*zero or")),
]


def line(kind: str = "float64") -> pm.Model:
    """A straight line through the origin, with a covariate of some type."""
    with pm.Model(coords={"obs": range(4)}) as made:
        x = pm.Data("x", np.zeros(4, kind), dims="obs")
        pm.Normal("y", pm.Normal("b") * x, 1, **reals())
    return made


def line_of_bytes() -> pm.Model:
    return line("uint8")


def line_of_flags() -> pm.Model:
    return line("bool")


def line_of_int32() -> pm.Model:
    return line("int32")


def exposed() -> pm.Model:
    with pm.Model(coords={"obs": range(4)}) as made:
        exposure = pm.Data("exposure", np.ones(4), dims="obs")
        pm.Poisson("y", exposure * pm.math.exp(real()), **counts())
    return made


def known_errors() -> pm.Model:
    with pm.Model(coords={"obs": range(4)}) as made:
        pm.Normal("y", real(), pm.Data("se", np.ones(4), dims="obs"), **reals())
    return made


def trials() -> pm.Model:
    with pm.Model(coords={"obs": range(4)}) as made:
        pm.Binomial("y", pm.Data("n", np.ones(4, int), dims="obs"), pm.Beta("p", 1, 1), **counts())
    return made


SERIES = np.cumsum(np.random.default_rng(1).normal(size=12))


def series_with_lag() -> pm.Model:
    """The earlier values as an array: they are those of the model's own series for ever."""
    with pm.Model() as made:
        pm.Normal("y", real() * SERIES[:-1], 1, observed=SERIES[1:])
    return made


def series_with_lags() -> pm.Model:
    lags = np.stack([SERIES[1:-1], SERIES[:-2]], axis=1)
    with pm.Model() as made:
        pm.Normal("y", lags @ pm.Normal("b", shape=2), 1, observed=SERIES[2:])
    return made


def centred_by_itself() -> pm.Model:
    with pm.Model() as made:
        pm.Normal("y", real() * np.array(SERIES), 1, observed=SERIES)
    return made


def of_time() -> pm.Model:
    """Placeholders that count, beside a time that counts: no copy."""
    with pm.Model() as made:
        pm.Normal("y", real() * np.arange(12.0), 1, observed=np.arange(12.0))
    return made


def undecoded(mark: int = -99, **attributes: object) -> xr.Dataset:
    values = ("obs", np.array([1, 2, mark, 3]), attributes)
    return xr.Dataset({"y": values})


X = np.array([1.0, 2.0, 3.0, 4.0])
Y = np.array([0.5, 1.0, 1.5, 2.0])
FILL = 9.969209968386869e36
LAGGED = r"'y': the model also has its own `observed` values as a constant array, moved by 1 row,"

OTHERS: dict[str, Situation] = {
    "mark: -999 among numbers": Situation(
        MODELS["normal"], y(0.1, 0.3, -999, 0.2), Warned("-999 in row 2.*from 0.1 to 0.3")
    ),
    "mark: 9999 twice": Situation(
        MODELS["normal"], y(9999, 0.3, 9999, 0.2), Warned(r"9999 in row 0 \(2 in all\)")
    ),
    "mark: -99 that may be a value": Situation(
        MODELS["normal"], y(-100, 50, -99, -60), Read({"y": [[-100, 50, -99, -60]]})
    ),
    "mark: 999999 among counts": Situation(
        MODELS["poisson"], y(0, 3, 2, 999999), Warned("999999 in row 3")
    ),
    "mark: -32768 in a covariate": Situation(
        line, {"x": [1.0, -32768, 2, 3], "y": Y}, Warned("'x' of dataset '0': got -32768 in row 1")
    ),
    "mark: netCDF's fill value": Situation(
        MODELS["normal"], y(0.1, FILL, 0.2, 0.4), Refused(r"9.96921e\+36 in row 1.*no digits left")
    ),
    "mark: 1e20": Situation(MODELS["normal"], y(0.1, 0.3, 0.2, 1e20), Refused("1e.20 in row 3")),
    "mark: a fill value in a covariate": Situation(
        line, {"x": [1.0, FILL, 2, 3], "y": Y}, Refused("'x' of dataset '0': got 9.96921e.36")
    ),
    "large: all of them": Situation(
        MODELS["normal"], y(1e20, 3e20, 2e20, 4e20), Read({"y": [[1e20, 3e20, 2e20, 4e20]]})
    ),
    "large: one of 1e12": Situation(
        MODELS["normal"], y(0.1, 0.2, 1e12, 0.3), Read({"y": [[0.1, 0.2, 1e12, 0.3]]})
    ),
    "not finite: infinity": Situation(MODELS["normal"], y(0, np.inf, 1, 1), Refused("infinite")),
    "undecoded: a fill value": Situation(
        MODELS["normal"], undecoded(_FillValue=-99), Refused("'y': got 1 values that mean missing")
    ),
    "undecoded: a missing value": Situation(
        MODELS["normal"], undecoded(missing_value=[-99, -98]), Refused("decode_cf")
    ),
    "undecoded: a scale": Situation(
        MODELS["normal"], undecoded(scale_factor=0.1), Refused("attributes .'scale_factor'")
    ),
    "undecoded: nothing of it": Situation(
        MODELS["normal"], undecoded(-5, _FillValue=-7, units="m"), Read({"y": [[1, 2, -5, 3]]})
    ),
    "type: whole numbers for numbers": Situation(
        line, {"x": [1, 2, 3, 4], "y": [1, 0, 1, 0]}, Read({"x": [[1, 2, 3, 4]]})
    ),
    "type: counts as floats": Situation(
        MODELS["poisson"], y(1.0, 2.0, 0.0, 3.0), Read({"y": [[1, 2, 0, 3]]})
    ),
    "type: fractions for counts": Situation(
        MODELS["poisson"], y(1.0, 2.5, 0.0, 3.0), Refused("'y' of dataset '0'.*integers.*fractions")
    ),
    "type: a count above 2**63": Situation(
        MODELS["poisson"],
        {"y": np.array([1, 2**63 + 5, 0, 3], dtype=np.uint64)},
        Refused("'y'.*int64, which holds"),
    ),
    "type: 300 in a byte": Situation(
        line_of_bytes, {"x": [0, 300, 1, 2], "y": Y}, Refused("'x'.*uint8, which holds 0 to 255")
    ),
    "type: -1 in a byte": Situation(
        line_of_bytes, {"x": [0, -1, 1, 2], "y": Y}, Refused("'x'.*uint8, which holds 0 to 255")
    ),
    "type: 2 in a flag": Situation(
        line_of_flags, {"x": [0, 1, 1, 2], "y": Y}, Refused("'x'.*bool, which holds 0 to 1")
    ),
    "type: 0.3 in a flag": Situation(
        line_of_flags, {"x": [0, 1, 1, 0.3], "y": Y}, Refused("'x'.*bool, which holds 0 to 1")
    ),
    "type: flags": Situation(
        line_of_flags, {"x": [False, True, 1, 0], "y": Y}, Read({"x": [[0, 1, 1, 0]]})
    ),
    "type: 2**32 + 1000 in 32 bits": Situation(
        line_of_int32, {"x": [0, 2**32 + 1000, 1, 2], "y": Y}, Refused("'x'.*int32, which holds")
    ),
    "type: text": Situation(MODELS["normal"], {"y": np.array(list("abcd"))}, Refused("numbers")),
    "type: dates": Situation(
        MODELS["normal"], {"y": np.array(["2020-01-01"] * 4, "M8[D]")}, Refused("'y'.*datetime")
    ),
    "type: complex": Situation(MODELS["normal"], {"y": np.zeros(4, complex)}, Refused("complex")),
    "covariate: a negative exposure": Situation(
        exposed, {"exposure": [1.0, 2, -1, 1], "y": [1, 0, 2, 1]}, Refused("got 2 in row 2.*'expos")
    ),
    "covariate: no exposure and no count": Situation(
        exposed, {"exposure": [1.0, 0, 1, 1], "y": [1, 0, 2, 1]}, Read({"y": [[1, 0, 2, 1]]})
    ),
    "covariate: no exposure and a count": Situation(
        exposed, {"exposure": [1.0, 0, 1, 1], "y": [1, 4, 2, 1]}, Refused("got 4 in row 1.*'expos")
    ),
    "covariate: a standard error of 0": Situation(
        known_errors, {"se": [1.0, 0, 1, 1], "y": Y}, Refused("got 1 in row 1.*'se'")
    ),
    "covariate: more successes than trials": Situation(
        trials, {"n": [5, 5, 5, 5], "y": [5, 1, 6, 2]}, outside("whole.* from 0 to 5", "6", 2)
    ),
    "covariate: trials of each row": Situation(
        trials, {"n": [5, 1, 6, 2], "y": [5, 1, 6, 2]}, Read({"n": [[5, 1, 6, 2]]})
    ),
    "covariate: NaN": Situation(
        line, {"x": [1.0, np.nan, 2, 3], "y": Y}, Refused("'x'.*covariate without gaps")
    ),
    "missing: NaN": Situation(
        MODELS["normal"], y(1, np.nan, 2, 3), Read({"y": [[1, np.nan, 2, 3]]})
    ),
    "missing: NaN among counts": Situation(
        MODELS["poisson"], y(1, np.nan, 2, 3), Read({"y": [[1, np.nan, 2, 3]]})
    ),
    "missing: NaN where zero cannot be": Situation(
        MODELS["log-normal"], y(1, np.nan, 2, 3), Read({"y": [[1, np.nan, 2, 3]]})
    ),
    "missing: all": Situation(MODELS["normal"], y(*[np.nan] * 4), Refused("at least one observed")),
    "lag: another series": Situation(series_with_lag, {"y": SERIES[:-1]}, Warned(LAGGED)),
    "lag: its own series": Situation(series_with_lag, {"y": SERIES[1:]}, Read({"y": [SERIES[1:]]})),
    "lag: two in a matrix": Situation(
        series_with_lags, {"y": SERIES[:10]}, Warned("as a constant array, moved by 1 row")
    ),
    "lag: the observed values themselves": Situation(
        centred_by_itself, {"y": -SERIES}, Warned("as a constant array, which stays")
    ),
    "lag: none, but times": Situation(of_time, {"y": SERIES}, Read({"y": [SERIES]})),
}

CASES: dict[str, Situation] = OTHERS | {
    f"{name}: {', '.join(map(str, given))}": Situation(
        MODELS[name], y(*given), Read({"y": [given]}) if outcome is None else outcome
    )
    for name, given, outcome in TAKEN
}
