"""The clock of the peers' benchmark: what a core works, whatever else the machine does."""

import resource
import time


def now() -> float:
    """CPU seconds of this process, and of those that it started and that ended (compilers, say).

    All rows have one core, so that this is the time that they take where the core is theirs.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
