"""``python -m curvi`` is the command line."""

import sys

from curvi.cli import main

if __name__ == "__main__":
    sys.exit(main())
