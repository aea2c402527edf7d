"""`python -m corymb`: the command line, where the script is not on the path."""

import sys

from corymb.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
