"""`python -m clusterprep`: the same as the command."""

from clusterprep.cli import main

main()
