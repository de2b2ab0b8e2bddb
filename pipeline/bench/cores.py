"""One core for a measurement that is claimed for one core."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process, the threads that it starts and arrow's pool to one core, where the system can."""
    import pyarrow as pa

    threads = pa.cpu_count()
    pa.set_cpu_count(1)
    if not hasattr(os, "sched_setaffinity"):
        try:
            yield
        finally:
            pa.set_cpu_count(threads)
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        pa.set_cpu_count(threads)
