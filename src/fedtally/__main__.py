"""Run the command line as `python -m fedtally`, where the script `fedtally` is not on the PATH."""

from fedtally.cli import main

if __name__ == "__main__":
    main()
