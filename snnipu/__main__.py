"""``python -m snnipu``."""

import sys

from snnipu.cli import main

if __name__ == "__main__":
    sys.exit(main())
