"""`python -m roost.cli` is the command `roost`."""

import sys

from roost.cli import main

sys.exit(main())
