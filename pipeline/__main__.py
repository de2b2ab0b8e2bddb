"""The commands `fianchetto` and `fianchetto-uci`, and `python -m pipeline`.

Nothing is imported until `main` is called: a spawned process imports its parent's main module again
before it works.
"""

import os
import sys


def main() -> None:
    """Run the command line."""
    # malloc, in workers too: pyarrow's own allocator keeps about 40 MiB of freed memory. The choice
    # is read when pyarrow is imported.
    from engine.cores import container_quota, cores

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if container_quota() < (os.cpu_count() or 1):  # torch counts the machine's cores
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))
    try:
        from pipeline.cli.main import main as command
    except KeyboardInterrupt:  # before the command has set its own handlers
        sys.stderr.write("fianchetto: interrupted\n")
        sys.exit(130)
    command()


def uci() -> None:
    """Run `fianchetto uci`: for GUIs and bots that start a program without arguments."""
    sys.argv.insert(1, "uci")
    main()


if __name__ == "__main__":
    try:
        main()
    finally:
        # Under -m, Python kills itself by SIGINT whatever the exit status, if Ctrl-C came while a
        # string was executed, as dataclasses do; it forgets this when it executes another string.
        exec("")  # noqa: S102
