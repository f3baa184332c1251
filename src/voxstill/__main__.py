"""`python -m voxstill` is `voxstill`."""

import sys

from voxstill.cli import main

if __name__ == "__main__":
    sys.exit(main())
