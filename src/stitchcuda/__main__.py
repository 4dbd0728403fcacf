"""``python -m stitchcuda``: the command line, where no script is installed for it."""

from stitchcuda.cli.main import main

if __name__ == "__main__":
    main()
