"""The command line as `python -m fedtally`, for where its script is not on the path."""

from fedtally.cli import main

if __name__ == "__main__":
    main()
