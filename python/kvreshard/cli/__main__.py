"""`python -m kvreshard.cli`."""

from kvreshard.cli import main

if __name__ == "__main__":
    main()
