"""The command `fianchetto` and `python -m pipeline`: nothing is imported until it is called.

A process that is spawned imports its parent's main module again before it works: this one takes it no time.
"""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["ingest"] and any(word.startswith("--out") for word in sys.argv):
        from pipeline.workers import available_cores, prepare

        if available_cores() > 1:
            prepare()  # on another core, while this one imports and parses for a second
    from pipeline.cli import main as command

    command()


if __name__ == "__main__":
    main()
