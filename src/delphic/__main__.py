"""`python -m delphic`: what torchrun starts."""

import sys

from delphic.cli import main

sys.exit(main())
