"""`python -m vermilion` is the command `vermilion`."""

import sys

from vermilion.cli import main

if __name__ == "__main__":
    sys.exit(main())
