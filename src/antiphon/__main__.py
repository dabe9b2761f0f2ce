"""`python -m antiphon`: the command line, nothing else."""

from antiphon.cli import main

if __name__ == "__main__":
    main()
