"""`trajectory.py` as a script that is forked from a warm process: its imports come first."""

import sys

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch.utils.data  # noqa: F401

import skep_job  # noqa: F401

if __name__ == "__main__":
    import trajectory  # It looks at its rank, which no warm process knows.

    trajectory.main(sys.argv[1])
