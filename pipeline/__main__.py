"""The commands `fianchetto` and `fianchetto-uci`, and `python -m pipeline`.

All imports are inside the functions, because a spawned process imports its parent's main module
again before it starts work.
"""

import os
import sys


def main() -> None:
    """Run the command line."""
    # Make pyarrow use malloc, in workers too: its own allocator keeps about 40 MiB of freed memory.
    # pyarrow reads this variable when it is imported.
    from engine.cores import count_cores, read_container_quota

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if read_container_quota() < (os.cpu_count() or 1):  # torch ignores the container's CPU quota
        os.environ.setdefault("OMP_NUM_THREADS", str(count_cores()))
    try:
        from pipeline.cli.main import main as command
    except KeyboardInterrupt:  # before the command has set its own handlers
        sys.stderr.write("fianchetto: interrupted\n")
        sys.exit(130)
    command()


def uci() -> None:
    """Run `fianchetto uci`, for GUIs and bots that start a program without arguments."""
    sys.argv.insert(1, "uci")
    main()


if __name__ == "__main__":
    try:
        main()
    finally:
        # Under -m, Python exits by SIGINT, ignoring the exit status, if Ctrl-C arrived during an
        # `exec` of a string (dataclasses use one). Another `exec` clears that flag.
        exec("")  # noqa: S102
