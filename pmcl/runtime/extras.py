"""Packages that only a part of pmcl needs, and what to install where one is missing."""

from importlib import import_module


class MissingExtraError(ImportError):
    """Something was asked for that needs an extra of pmcl which is not installed."""


def need(extra: str, what: str, *packages: str) -> None:
    """Look for packages before minutes are spent.

    Raises
    ------
    MissingExtraError
        Naming the package and the extra of pmcl that has it.
    """
    for name in packages:
        try:
            import_module(name)
        except ImportError as error:
            raise MissingExtraError(
                f'{what} needs {name}, which is not installed: pip install "pmcl[{extra}]"'
            ) from error
