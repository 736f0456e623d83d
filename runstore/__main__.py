"""`python -m runstore`: the same as the command `runstore`."""

from runstore.cli import main

main()
