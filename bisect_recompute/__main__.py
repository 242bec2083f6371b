"""`python -m bisect_recompute`."""

from bisect_recompute.cli import main

main()
