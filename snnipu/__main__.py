"""Entry point of ``python -m snnipu``: runs the command line."""

import sys

from snnipu.cli import main

if __name__ == "__main__":
    sys.exit(main())
