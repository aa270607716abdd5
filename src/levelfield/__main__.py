"""`python -m levelfield`."""

import sys

from levelfield.core.safe_path import without_working_directory

without_working_directory()

from levelfield.cli.main import main  # noqa: E402 after that, for it imports the libraries

sys.exit(main())
