"""Entry points of the commands `fianchetto` and `fianchetto-uci`, and of `python -m pipeline`.

Imports are inside the functions, because each spawned worker process imports this module again.
"""

import os
import sys


def main() -> None:
    """Run the command line."""
    from engine.cores import count_cores, read_container_quota

    # pyarrow reads this when it is imported. Its own allocator keeps about 40 MiB of freed memory.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if read_container_quota() < (os.cpu_count() or 1):  # torch ignores the container's CPU quota
        os.environ.setdefault("OMP_NUM_THREADS", str(count_cores()))
    try:
        from pipeline.cli.main import main as run_command_line
    except KeyboardInterrupt:  # the command line has not installed its signal handlers yet
        sys.stderr.write("fianchetto: interrupted\n")
        sys.exit(130)
    run_command_line()


def uci() -> None:
    """Run `fianchetto uci`, for chess programs that start an engine without arguments."""
    sys.argv.insert(1, "uci")
    main()


if __name__ == "__main__":
    try:
        main()
    finally:
        # If Ctrl-C arrived during an `exec` of a string (dataclasses use one), `python -m` would
        # exit by SIGINT instead of with the exit status. Another `exec` prevents this.
        exec("")  # noqa: S102
