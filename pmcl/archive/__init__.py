"""DataTree <-> everything that must outlive the process."""

from pmcl.archive.errors import StateError
from pmcl.archive.zipped import read_archive, write_archive

__all__ = ["StateError", "read_archive", "write_archive"]
