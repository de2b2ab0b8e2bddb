"""Benchmarks of ingest, batches, search, GPUs and playing strength."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process, its threads and Arrow's pool to one core, if the system supports it."""
    threads = pa.cpu_count()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    pa.set_cpu_count(1)
    if cores is not None:
        os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        pa.set_cpu_count(threads)
