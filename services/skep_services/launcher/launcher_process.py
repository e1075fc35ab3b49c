"""The launcher as a process: `python -I -S launcher_process.py [--config PATH]` (see `server`).

Run by its path, because isolated mode takes neither a folder nor PYTHONPATH into the module path.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

    from skep_services.launcher.server import main

    sys.exit(main(sys.argv[1:]))
