"""Experiment 3 (racing diffusion): participants of nine attentional tasks, and the networks.

Trials that are left out, here and nowhere else:

- those without a response time, or with one that is not positive (time-outs; in Pratte et al.
  (2010) a time of -1 marks no valid response);
- those slower than 5 s, beyond what the model's lapses cover (von Bastian et al. and Pratte et al.
  leave slow outliers out, too; Hedge et al. trim at three median absolute deviations);
- neutral trials, and second sessions (Hedge et al. (2018)).

Fast guesses stay: the lapses are there for them. Of each participant the first 90 congruent and the
first 90 incongruent trials count; who has fewer is not adapted to.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from continual import Runs, Task, reference

import pmcl
from pmcl.compile import compile_model, make_simulator, read_covariates

DEFINITION = pmcl.models.find("racing_diffusion")
EACH = 90  # trials of a condition
LENGTHS = (60, 500)
SOURCES = (
    "chetverikov_2017_flanker",
    "hedge_2018_s1_stroop",
    "hedge_2018_s1_flanker",
    "hedge_2018_s2_stroop",
    "pratte_2010_e1_stroop",
    "pratte_2010_e1_simon",
    "pratte_2010_e2_stroop",
    "pratte_2010_e2_simon",
)
UNSEEN = (
    "hedge_2018_s2_flanker",
    "vonbastian_2016_stroop",
    "vonbastian_2016_simon",
    "vonbastian_2016_flanker",
)
COLUMNS = ("participant", "congruency", "rt", "accuracy", "session", "trial")


@dataclass(frozen=True)
class Size:
    """How much is computed; `SHORT` is what tests run, `continual` in continuous integration.

    Of the paper's 128 draws a quarter: all would take two cores most of a day for all methods.
    """

    tasks: int = 9
    participants: int | None = None
    simulated: int = 50
    baseline_steps: int = 6400
    batch_size: int = 64
    steps: int = 1500
    adapt_steps: int = 300
    per_task: int = 5
    paper_steps: int = 200
    paper_draws: int = 32
    simulations: int | None = None


FULL = Size()
SHORT = Size(
    tasks=2,
    participants=3,
    simulated=3,
    baseline_steps=100,
    batch_size=16,
    steps=200,
    adapt_steps=20,
    per_task=1,
    paper_steps=5,
    paper_draws=8,
    simulations=200,
)


def folder() -> Path:
    """Return the folder of the trials, or say how to get it."""
    root = os.environ.get("PMCL_DATA")
    path = Path(root or "") / "stroop"
    if not root or not path.is_dir():
        raise FileNotFoundError(
            "experiment 3 needs the trials of the attentional control data collection (Haaf et "
            "al. 2025, GitHub: jstbcs/acdc-database): one gzip CSV file a data set, with columns "
            f"{', '.join(COLUMNS)}, in a folder `stroop`; name the folder above it by PMCL_DATA "
            f"(now {root!r})."
        )
    return path


def trials(source: str) -> pd.DataFrame:
    """Read the trials of a data set that are not left out.

    Returns
    -------
    pandas.DataFrame
        participant, incongruent (0 or 1) and y: seconds, negative where the answer was incorrect.
    """
    table = pd.read_csv(folder() / f"{source}.csv.gz", usecols=list(COLUMNS))
    table = table[table["session"].fillna(1) == 1]
    table = table[table["congruency"].isin(["congruent", "incongruent"])]
    longest = DEFINITION.module.LONGEST
    table = table[(table["rt"] > 0) & (table["rt"] < longest) & table["accuracy"].notna()]
    return pd.DataFrame(
        {
            "participant": table["participant"].astype(str),
            "incongruent": (table["congruency"] == "incongruent").astype(int),
            "y": table["rt"] * np.where(table["accuracy"] == 1, 1, -1),
        }
    ).reset_index(drop=True)


def participants(source: str, *, number: int | None = None) -> xr.Dataset:
    """Make one dataset a participant, of 90 trials of each condition in the order they came."""
    names, data = [], []
    for name, rows in trials(source).groupby("participant", sort=False):
        halves = [rows[rows["incongruent"] == c].head(EACH) for c in (0, 1)]
        if min(map(len, halves)) == EACH:
            names.append(str(name))
            data.append(pd.concat(halves).sort_index())
    names, data = names[:number], data[:number]
    return xr.Dataset(
        {
            k: (("dataset", "trial"), np.stack([d[k].to_numpy() for d in data]))
            for k in ("y", "incongruent")
        },
        coords={"dataset": names},
    )


def everyone(source: str, *, number: int | None = None) -> dict[str, xr.Dataset]:
    """Make one dataset a participant, of all of its trials, however many."""
    groups = trials(source).groupby("participant", sort=False)
    found = {
        str(name): xr.Dataset({k: ("trial", rows[k].to_numpy()) for k in ("y", "incongruent")})
        for name, rows in groups
    }
    return dict(list(found.items())[:number])


def simulated_participants(number: int, *, random_seed: int = 0) -> xr.Dataset:
    """Participants from the prior predictive."""
    simulator = make_simulator(compile_model(DEFINITION.model()), read_covariates({}, ()))
    _, data = simulator.simulate(number, random_seed=random_seed)
    names = [f"simulated {i + 1}" for i in range(number)]
    return xr.Dataset({"y": (("dataset", "trial"), data["y"])}, coords={"dataset": names})


def tasks(out: Path, size: Size = FULL) -> list[Task]:
    """Build the tasks; references are sampled once and kept in `out`."""
    model = DEFINITION.model()
    found = []
    for name in ("simulated", *SOURCES)[: size.tasks]:
        if name == "simulated":
            data = simulated_participants(size.simulated)
        else:
            data = participants(name, number=size.participants)[["y"]]
        path = out / "references" / f"{name}.zarr"
        found.append(Task(name, {"adapted": data}, {"adapted": reference(model, data, path)}))
    return found


def paper_network() -> pmcl.Network:
    """The paper's: a deep set of 30 outputs, and six couplings of 2 x 256 units with mish."""
    return pmcl.Network(
        pmcl.DeepSet(outputs=30),
        pmcl.CouplingFlow(layers=6, width=256, depth=2, activation="mish"),
        whiten=False,
    )


def start(out: Path, settings: str, seed: int, size: Size = FULL) -> pmcl.AmortizedPosterior:
    """Return the pretrained network: the paper's, of 180 trials, or the default one, over many."""
    out.mkdir(parents=True, exist_ok=True)
    options = (
        {
            "network": paper_network(),
            "steps": size.baseline_steps,
            "batch_size": size.batch_size,
            "learning_rate": 5e-4,
        }
        if settings == "paper"
        else {
            "lengths": LENGTHS,
            "steps": size.steps,
            "batch_size": size.batch_size,
            "simulations": size.simulations,
        }
    )
    return DEFINITION.fit(
        **options,
        random_seed=seed,
        checkpoint=out / f"{settings}-{seed}.checkpoint",
        progressbar=False,
    )


def runs(out: Path, size: Size = FULL, *, references: bool = True) -> Runs:
    """All tasks, judged relative to the paper's network with seed 0; none without references."""
    found = tasks(out, size) if references else []
    return Runs(
        out,
        found,
        lambda: start(out, "paper", 0, size),
        lambda settings, seed: start(out, settings, seed, size),
    )
