"""Commands about published models: list, show, check, publish."""

from pathlib import Path
from typing import Annotated

from cyclopts import App

from pmcl.cli.common import Flag, Json, Quiet, answer, apart

models = App(name="models", help="Published models: list, show, check.")


@models.command(name="list")
def list_models(*, folder: Path | None = None, json: Json = False) -> None:
    """List the published models, and what each is for.

    Parameters
    ----------
    folder
        A folder of models; by default that of PMCL_MODELS and the package's.
    json
        As JSON.
    """
    from pmcl.models.definition import find, names

    rows = {name: find(name, folder).description for name in names(folder)}
    width = 2 + max(map(len, rows), default=0)
    answer(rows, json, "\n".join(f"{k:<{width}}{v}" for k, v in rows.items()))


@models.command
def show(name: str, /, *, folder: Path | None = None, json: Json = False) -> None:
    """Show a published model's card.

    Parameters
    ----------
    name
        Name of the model.
    folder
        A folder of models.
    json
        Facts of the card as JSON.
    """
    from pmcl.models.card import card_of
    from pmcl.models.definition import ModelError, find

    found = find(name, folder)
    facts = card_of(found)
    if facts is None:
        raise ModelError(f"{name}: has no card yet; write it with `pmcl publish {name}`.")
    text = found.card.read_text(encoding="utf-8").split("\n", 1)[1].strip()
    answer({"name": name, "path": str(found.path), **facts}, json, text)


@models.command
def check(*names: str, folder: Path | None = None, json: Json = False) -> int:
    """Check published models: they compile and simulate, and card and state are theirs.

    Ends with status 1 where one has a problem.

    Parameters
    ----------
    names
        Names of models; all by default.
    folder
        A folder of models.
    json
        As JSON.
    """
    from pmcl import models as registry

    found = {}
    for name in names or registry.names(folder):
        with apart():
            try:
                found[name] = registry.check(registry.find(name, folder))
            except registry.ModelError as error:
                found[name] = [str(error)]
    lines = [f"{name}: {'; '.join(problems) or 'good'}" for name, problems in found.items()]
    answer(found, json, "\n".join(lines))
    return int(any(found.values()))


def publish(
    *names: str,
    folder: Path | None = None,
    steps: int | None = None,
    adapt: Annotated[bool, Flag] = False,
    state: Annotated[bool, Flag] = False,
    simulations: int = 200,
    seed: int = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Train published models, check them against simulations and NUTS, and write their cards.

    Ends with status 1 where a check fails; the card says which.

    Parameters
    ----------
    names
        Names of models' folders; by default all whose card or state is missing or stale, so that a
        run that was cut off goes on with the same command.
    folder
        A folder of models; by default that of PMCL_MODELS and the package's.
    steps
        Most steps of pretraining; by default the model's own.
    adapt
        Adapt to the example data, too.
    state
        Publish the trained state where it is at most 2 MB; it never holds stored datasets.
    simulations
        Datasets for calibration.
    seed
        Random seed.
    json
        All figures as JSON.
    quiet
        No progress.
    """
    from pmcl import models as registry
    from pmcl.models.publishing import publish as publish_model

    options = {} if steps is None else {"steps": steps}
    facts, lines = {}, []
    with apart():
        every = [registry.find(n, folder) for n in names or registry.names(folder)]
        if not names:
            every = [d for d in every if registry.check(d) or (state and d.state is None)]
        for definition in every:
            found = publish_model(
                definition,
                adapt=adapt,
                state=state,
                simulations=simulations,
                random_seed=seed,
                progressbar=not quiet,
                **options,
            )
            card = str(definition.card)
            facts[definition.name] = {"card": card, "problems": found.problems, **found.figures}
            lines.append(f"{card}: {'; '.join(found.problems) or 'all checks passed'}")
    answer(facts, json, "\n".join(lines) or "every card and state is of its model")
    return int(any(one["problems"] for one in facts.values()))
