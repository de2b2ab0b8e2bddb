"""The command `fianchetto` and `python -m pipeline`: nothing is imported until it is called.

A process that is spawned imports its parent's main module again before it works: this one takes it no time.
"""


def main() -> None:
    """Run the command line."""
    from pipeline.cli import main as command

    command()


if __name__ == "__main__":
    main()
