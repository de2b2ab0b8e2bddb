"""The command `fianchetto` and `python -m pipeline`.

Nothing is imported until `main` is called: a spawned process imports its parent's main module again before it works.
"""

import sys


def spreads(words: list[str]) -> bool:
    """Return whether a command line will probably start local worker processes."""
    given = " ".join(words).replace("=", " ")
    other = (" --engine ", " --workers 1 ", " -h ", " --help ")
    return given.startswith("ingest ") and " --out " in given and not any(word in f"{given} " for word in other)


def main() -> None:
    """Run the command line."""
    try:
        if spreads(sys.argv[1:]):
            from pipeline.executors.local import available_cores, prepare

            if available_cores() > 1:
                prepare("pipeline.ingest.preload")  # on another core, while this process imports and parses
        from pipeline.cli.main import main as command
    except KeyboardInterrupt:  # before the command has set its own handlers
        sys.stderr.write("fianchetto: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    try:
        main()
    finally:
        # Under -m, Python kills itself by SIGINT whatever the exit status, if Ctrl-C came while a string was executed, as
        # dataclasses do; it forgets this when it executes another string.
        exec("")  # noqa: S102
