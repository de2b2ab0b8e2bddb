"""The command `fianchetto` and `python -m pipeline`: nothing is imported until it is called.

A process that is spawned imports its parent's main module again before it works: this one takes it no time.
"""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from pipeline.cli.main import main as command
    except KeyboardInterrupt:  # Ctrl-C in that second, or before the command has said what it does on one
        sys.stderr.write("fianchetto: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    try:
        main()
    finally:
        # Under -m Python ends itself by SIGINT, whatever the exit status, where Ctrl-C once came within a text that was
        # being executed, as dataclasses are made; it forgets that when it executes another.
        exec("")  # noqa: S102
