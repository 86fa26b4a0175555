"""The command ``pmcl``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pmcl


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process by default.

    Returns
    -------
    int
        The exit status.
    """
    arguments = _parser().parse_args(argv)
    return _demo(arguments.out, seed=arguments.seed, quick=arguments.quick)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pmcl", description=(pmcl.__doc__ or "").split("\n")[0])
    parser.add_argument("--version", action="version", version=f"pmcl {pmcl.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="linear regressions on real data, end to end",
        description=(
            "Pretrain an amortized posterior of a linear regression, adapt it to one real data "
            "set after another, and compare it with NUTS of the same model. Needs the extra "
            '"demo". With the environment variable PMCL_DATA set to a folder with regression/, '
            "the nine data sets of the paper are used."
        ),
    )
    demo.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR",
        help="folder for table.json, figure.png and results.zarr (default: demo-out)",
    )  # fmt: skip
    demo.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (default: 1)")
    demo.add_argument(
        "--quick",
        action="store_true",
        help="two tasks and hardly any training: shows that everything runs, and nothing else",
    )
    return parser


def _demo(out: Path, *, seed: int, quick: bool) -> int:
    # PyMC and JAX take seconds to import: not before --help and --version have been answered
    from pmcl.demo.run import QUICK, DemoSettings, MissingExtraError, run_demo

    try:
        run_demo(out, settings=QUICK if quick else DemoSettings(), random_seed=seed)
    except (MissingExtraError, FileNotFoundError) as error:
        print(f"pmcl demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
