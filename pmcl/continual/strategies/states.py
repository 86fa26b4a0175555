"""What strategies have stored, from task to task; and whether another one can start from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pmcl.continual.strategies.memory import Memory
from pmcl.continual.strategies.strategy import AbstractStrategy, Occasion
from pmcl.runtime.arguments import listed


@dataclass(frozen=True)
class StrategyState:
    """A strategy's state and the tasks that went into it.

    Attributes
    ----------
    kind : str
        Name of the strategy's class.
    tasks : tuple of str
    state : object
    """

    kind: str
    tasks: tuple[str, ...]
    state: Any


def memory_of(states: Sequence[StrategyState]) -> Memory:
    """Return the datasets that a strategy has stored; an empty memory where none has."""
    return next((s.state for s in states if isinstance(s.state, Memory)), Memory())


def carried(
    strategies: Sequence[AbstractStrategy],
    states: Sequence[StrategyState],
    done: Sequence[str],
    now: Occasion,
) -> list[Any]:
    """State with which each strategy begins the next task; None where it is the first.

    A strategy that was not in force at every task so far starts from the memory, where that holds
    datasets of all of them; not one that follows the steps of training.

    Parameters
    ----------
    strategies : sequence of AbstractStrategy
    states : sequence of StrategyState
        What is stored.
    done : sequence of str
        Names of the tasks so far.
    now : Occasion
        Before the next task.

    Raises
    ------
    ValueError
        Naming the strategy, and what is missing.
    """
    by_kind = {s.kind: s for s in states}
    memory = next((s for s in states if isinstance(s.state, Memory)), None)
    found: list[Any] = []
    for strategy in strategies:
        kind = type(strategy).__name__
        if not done or not strategy.protects:
            found.append(None)
            continue
        known = by_kind.get(kind)
        reason = "nothing is, as after `forget` or where it was not in force"
        if known is not None:
            lacks = _missing(known, done)
            reason = f"it has not seen {listed(lacks)}" if lacks else strategy.accepts(known.state)
            if not reason:
                found.append(known.state)
                continue
        usable = memory is not None and not _missing(memory, done) and len(memory.state)
        traced = type(strategy).trace is not AbstractStrategy.trace
        if usable and memory is not None and kind != memory.kind and not traced:
            earlier = replace(now, name="memory", task=memory.state.stored())
            found.append(strategy.end(strategy.begin(None, earlier), None, earlier))
            continue
        lacking = (
            "it goes by steps of training, which stored datasets do not tell"
            if traced
            else "no strategy has stored datasets of all earlier tasks"
        )
        others = [f"{s.kind}()" for s in states if not _missing(s, done)] or ["pmcl.Naive()"]
        raise ValueError(
            f"strategy: {kind} cannot go on from what is stored of {listed(done)}: "
            f"{reason}, and {lacking}. Begin with it at the first task, or go on with strategy="
            f"{' or '.join(others)}; without `strategy=` it is the posterior's own that goes on."
        )
    return found


def stored(
    states: Sequence[StrategyState],
    strategies: Sequence[AbstractStrategy],
    new: Sequence[Any],
    done: Sequence[str],
) -> tuple[StrategyState, ...]:
    """Put new states in the place of old ones; those of strategies not in force stay."""
    kinds = [type(s).__name__ for s in strategies]
    kept = [s for s in states if s.kind not in kinds]
    fresh = [
        StrategyState(k, tuple(done), state)
        for k, state in zip(kinds, new, strict=True)
        if state is not None
    ]
    return (*kept, *fresh)


def forgotten(states: Sequence[StrategyState], task: str) -> tuple[StrategyState, ...]:
    """Return what is stored without a task; what cannot be taken apart goes with it."""
    found = []
    for s in states:
        rest = tuple(t for t in s.tasks if t != task)
        if isinstance(s.state, Memory):
            keep = np.flatnonzero([t != task for t in s.state.tasks])
            memory = s.state.keep(keep) if len(keep) else Memory()
            found.append(StrategyState(s.kind, rest, memory))
        elif task not in s.tasks:
            found.append(s)
    return tuple(found)


def _missing(known: StrategyState | None, done: Sequence[str]) -> list[str]:
    seen = () if known is None else known.tasks
    # By position: a name may come twice.
    return [name for i, name in enumerate(done) if i >= len(seen) or seen[i] != name]
