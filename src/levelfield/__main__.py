"""`python -m levelfield`."""

import sys

from levelfield.runtime.own_modules import working_directory_last

working_directory_last()

from levelfield.cli.main import main  # noqa: E402 after that, for it imports the libraries

sys.exit(main())
