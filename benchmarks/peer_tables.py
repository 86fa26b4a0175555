"""The tables of `peers.py`: of every figure both measurements where there are two, with their days.

A figure that a row has not got is empty; a row that took longer than its limit says so.
"""

import re
from collections.abc import Callable, Mapping

from peer_rows import Measured
from results import Table

ACCURATE = 0.01  # mean MMD^2
TEN = 10  # datasets of the first table

type Rows = Mapping[str, Measured]


def number(value: float | None) -> str:
    """A figure of a table."""
    return "" if value is None else f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def each(measured: Measured, figure: Callable[[dict], float | None], shown=number) -> str:  # noqa: ANN001
    """A figure of each day, or what was in its way."""
    cells = []
    for one in measured:
        if "over" in one:
            cells.append(f"over {number(one['over'])} s")
        elif "failed" in one:
            cells.append("failed")
        else:
            cells.append(shown(figure(one)))
    return " / ".join(cells) if any(cells) else ""


def days(measured: Measured) -> str:
    """When it was measured."""
    return " / ".join(one["made"] for one in measured)


def mmd2(value: float | None) -> str:
    """An accuracy, as of a table."""
    return "" if value is None else f"{value:.4f}"


def until_ten(one: dict) -> float:
    """Seconds from a new process to ten posteriors."""
    if "seconds_to_train" in one:
        return one["seconds_to_import"] + one["seconds_to_train"] + one["seconds_plain_first"]
    first = one["seconds_to_import"] + one["seconds_of_the_first"]
    return first + (TEN - 1) * one["seconds_a_dataset"]


def in_second(one: dict) -> float | None:
    """Seconds from a second process, which finds the first one's caches, to a posterior."""
    first = one.get("seconds_of_the_first_cached")
    return None if first is None else one["seconds_to_import"] + first


def each_more(one: dict) -> float:
    """Seconds for each further dataset."""
    again = one.get("seconds_plain_again")
    return one["seconds_a_dataset"] if again is None else again / TEN


def good(measured: Measured) -> bool:
    """Whether the draws were accurate, each time."""
    return all(one.get("mmd2_plain", 1.0) <= ACCURATE for one in measured)


def by_way(rows: Rows) -> dict[str, str]:
    """Name of the row that stands for each way: the shortest accurate training, or the longest."""
    found: dict[str, str] = {}
    for name in _judged(rows):
        way = re.sub(r", (\d+|its own number of) steps$", "", name)
        over = all("mmd2_plain" not in one for one in rows[name])
        if way not in found or (not over and not good(rows[found[way]])):
            found[way] = name
    return found


def _judged(rows: Rows) -> list[str]:
    """Rows of the first part, trainings by their length."""

    def steps(name: str) -> tuple[str, int]:
        found = re.search(r", (\d+) steps$", name)
        return name.split(" steps")[0].rstrip("0123456789"), int(found[1]) if found else 10**9

    kinds = ("rows ", "parameters ", "groups ", "datasets, ")
    return sorted((n for n in rows if not n.startswith(kinds) and rows[n]), key=steps)


def tables(rows: Rows) -> list[Table]:
    """All figures."""
    judged, chosen = _judged(rows), by_way(rows)
    order = sorted(
        chosen,
        key=lambda way: (
            not good(rows[chosen[way]]),
            min((until_ten(o) for o in rows[chosen[way]] if "mmd2_plain" in o), default=1e9),
        ),
    )
    found = [
        Table(
            f"Ten regressions of 100 rows and 7 parameters, 1,000 draws of each; *accurate* is a "
            f"mean MMD² of {ACCURATE} or less to long chains of NUTS; of networks the shortest "
            "accurate training, or the longest",
            ["", "version", "accurate", "MMD²", "from a new process to ten posteriors, s",
             "to the first in a second process, caches kept, s", "each more, warm, s",
             "peak, GiB", "measured"],
            [
                [
                    chosen[way],
                    each(rows[chosen[way]], lambda o: o.get("version"), str),
                    "yes" if good(rows[chosen[way]]) else "no",
                    each(rows[chosen[way]], lambda o: o.get("mmd2_plain"), mmd2),
                    each(rows[chosen[way]], until_ten),
                    each(rows[chosen[way]], in_second),
                    each(rows[chosen[way]], each_more),
                    each(rows[chosen[way]], lambda o: o.get("peak_gib")),
                    days(rows[chosen[way]]),
                ]
                for way in order
            ],
        ),
        _figures(
            "The networks by themselves, and what the density makes of their draws "
            "(*corrected*: `sample`)",
            {n: rows[n] for n in judged if n.endswith(" steps")},
            {
                "import, s": "seconds_to_import",
                "training, compiling included, s": "seconds_to_train",
                "steps/s, warm": "steps_per_second",
                "MMD²": "mmd2_plain",
                "MMD², corrected": "mmd2_corrected",
                "ten drawn at first, s": "seconds_plain_first",
                "again, s": "seconds_plain_again",
                "corrected, again, s": "seconds_corrected_again",
                "peak of training, GiB": "peak_gib_of_training",
            },
        ),
        _figures(
            "One dataset after another",
            {n: rows[n] for n in judged if not n.endswith(" steps")},
            {
                "import, s": "seconds_to_import",
                "the first, s": "seconds_of_the_first",
                "the first in a second process, s": "seconds_of_the_first_cached",
                "each other, s": "seconds_a_dataset",
                "MMD²": "mmd2_plain",
            },
        ),
    ]  # fmt: skip
    return found + _growth(rows)


def _figures(title: str, rows: Rows, columns: Mapping[str, str]) -> Table:
    """A line for each row, and its figures by their key."""
    lines = [
        [
            name,
            *(
                each(some, _of(key), mmd2 if key.startswith("mmd2") else number)
                for key in columns.values()
            ),
            days(some),
        ]
        for name, some in rows.items()
    ]
    return Table(title, ["", *columns, "measured"], lines)


def _of(key: str) -> Callable[[dict], float | None]:
    """A figure by its key; of corrected draws only where there are any."""

    def found(one: dict) -> float | None:
        none = key.startswith("seconds_corrected") and "mmd2_corrected" not in one
        return None if none else one.get(key)

    return found


def _growth(rows: Rows) -> list[Table]:
    """By datasets, rows, parameters and groups."""
    found = []
    many = {n.removeprefix("datasets, "): m for n, m in rows.items() if n.startswith("datasets, ")}
    sizes = sorted({d["datasets"] for m in many.values() for o in m for d in o.get("drawn", [])})

    def of(one: dict, n: int) -> float | None:
        return {d["datasets"]: d["seconds"] for d in one["drawn"]}.get(n)

    if many:
        lines = [
            [way, *(each(m, lambda o, n=n: of(o, n)) for n in sizes), days(m)]
            for way, m in many.items()
        ]
        columns = ["", *(f"{n:,}" for n in sizes), "measured"]
        found.append(
            Table("Seconds for 100 draws of each of so many datasets, warm", columns, lines)
        )  # noqa: E501
    for kind in ("rows", "parameters", "groups"):
        names = [n for n in rows if n.startswith(f"{kind} ") and rows[n]]
        if not names:
            continue
        values = sorted({int(n.split(" ")[1].rstrip(",")) for n in names})
        ways = list(dict.fromkeys(n.split(", ", 1)[1] for n in names))
        for title, figure in (
            ("Seconds of 200 steps of training, compiling included, or of the first", _begun),
            ("Seconds a dataset, warm, 1,000 draws", _warm),
            ("Peak memory, GiB", lambda o: o.get("peak_gib")),
            *([("MMD² of the three parameters of all groups", lambda o: o["mmd2_plain"])]
              if kind == "groups" else []),
        ):  # fmt: skip
            shown = mmd2 if title.startswith("MMD²") else number
            lines = []
            for way in ways:
                cells = [rows.get(f"{kind} {v}, {way}", []) for v in values]
                when = sorted({o["made"] for m in cells for o in m})
                lines.append([way, *(each(m, figure, shown) for m in cells), " / ".join(when)])
            columns = ["", *(f"{v:,}" for v in values), "measured"]
            found.append(Table(f"{title}, by {kind}", columns, lines))
    return found


def _begun(one: dict) -> float:
    return one.get("seconds_to_train", one.get("seconds_of_the_first"))


def _warm(one: dict) -> float:
    if "drawn" in one:
        return one["drawn"][0]["seconds"] / one["drawn"][0]["datasets"]
    return one["seconds_a_dataset"]


def ahead(rows: Rows) -> list[str]:
    """Sentences on whatever a peer does better, on the last day: networks beside networks."""
    chosen = {w: rows[n][-1] for w, n in by_way(rows).items() if "version" in rows[n][-1]}
    measures = {
        "imports sooner": lambda o: o["seconds_to_import"],
        "has ten accurate posteriors sooner": lambda o: until_ten(o) if good([o]) else None,
        "has its first sooner in a second process, caches kept": in_second,
        "takes more steps a second": lambda o: (r := o.get("steps_per_second")) and -r,
        "has each more posterior sooner": each_more,
        "needs less memory": lambda o: o["peak_gib"],
    }
    lines = []
    for kind, trained in (("a network", True), ("without one", False)):
        some = {w: o for w, o in chosen.items() if trained == ("seconds_to_train" in o)}
        for what, measure in measures.items():
            if not trained and "steps" in what:
                continue
            values = {w: v for w, o in some.items() if (v := measure(o)) is not None}
            best = min((v for w, v in values.items() if w.startswith("pmcl")), default=None)
            better = {
                w: v
                for w, v in values.items()
                if not w.startswith("pmcl") and best is not None and v < best
            }
            if better:
                names = ", ".join(f"{w} ({number(abs(v))})" for w, v in better.items())
                lines.append(f"- {kind} {what}: {names}; pmcl {number(abs(best))}")
    return [*busy(rows), "Where a peer is ahead:", "", *(lines or ["- nowhere here"])]


def busy(rows: Rows) -> list[str]:
    """A word on what else the machine did, and on rows that had another clock."""
    each_one = [(n, o) for n, some in rows.items() for o in some if "load_average" in o]
    if not each_one:
        return []
    loads = [o["load_average"] for _, o in each_one]
    walls = sorted({n for n, o in each_one if "version" in o and o.get("clock") != "CPU"})
    lines = [f"Load averages before the rows: {min(loads):.1f} to {max(loads):.1f}."]
    if walls:
        lines.append(f"By the wall clock, not by CPU seconds: {'; '.join(walls)}.")
    return [" ".join(lines), ""]
