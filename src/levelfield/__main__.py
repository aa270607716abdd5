"""`python -m levelfield`."""

import os
import sys

# `python -m` searches the working directory first. The first import of another module comes after this.
if sys.path[0] in ("", os.getcwd()):
    sys.path.pop(0)

from levelfield.cli.main import main

sys.exit(main())
