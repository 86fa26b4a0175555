"""DataTree <-> everything that must outlive the process."""

from pmcl.state.archive import read_archive, write_archive
from pmcl.state.errors import StateError

__all__ = ["StateError", "read_archive", "write_archive"]
