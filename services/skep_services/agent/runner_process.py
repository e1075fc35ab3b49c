"""The runner as a process: `python -I -S runner_process.py STATE IDLE_SECONDS` (see `runner`).

Run by its path, because isolated mode takes neither a folder nor PYTHONPATH into the module path.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(__file__))))

    from skep_services.agent.runner import main

    sys.exit(main(sys.argv[1:]))
