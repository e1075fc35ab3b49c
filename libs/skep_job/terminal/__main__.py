"""`python -m skep_job.terminal [COMMAND [ARG...]]`: what `skep shell` submits as a job."""

import sys

from skep_job.terminal.holder import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
