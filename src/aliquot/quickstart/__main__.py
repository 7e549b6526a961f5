"""`python -m aliquot.quickstart`."""

import os
import sys


def _start() -> int:
    # numpy's libraries read these when they are loaded, so the import comes after.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    from aliquot.quickstart.program import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(_start())
