"""``python -m pmcl.cli``."""

import sys

from pmcl.cli import main

sys.exit(main())
