"""`python -m levelfield`."""

import sys

from levelfield.cli import main

sys.exit(main())
