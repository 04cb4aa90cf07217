"""Run the command line by `python -m fedtally`, if the script `fedtally` is not on the PATH."""

from fedtally.cli import main

if __name__ == "__main__":
    main()
