"""`python -m skep_services` is the `skep` command."""

import sys

from skep_services.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
