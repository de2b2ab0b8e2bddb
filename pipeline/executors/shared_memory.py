"""Items of megabytes reach a worker through memory that both processes see, and not through the pipe.

A pipe takes 200 kB at a time: a chunk of 8 MiB is copied four times, for 3 ms of the driver and 13 ms of the worker, of the
450 that the worker needs for it. On Linux the buffers that pickle gives out of band (PEP 574) are written to a nameless file
in memory, whose descriptor follows the message; the file is gone with the last process that holds it, however that ends.
Elsewhere everything goes through the pipe. An object names its large buffer by `pickle.PickleBuffer`, as
`pipeline.dumps.reader.Chunk` does, and the receiver gets it as a read-only memoryview.
"""

import mmap
import os
import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

IN_MEMORY = hasattr(os, "memfd_create")
LEAST = 1 << 18
"""Bytes of a buffer from which on it gets a file."""


class Message:
    """A pickled value that can be sent several times: it is pickled while workers work, and sent when one is idle."""

    def __init__(self, value: object) -> None:
        """Pickle a value; its large read-only buffers go to files in memory."""
        self._files: list[tuple[int, int]] = []  # descriptor, bytes
        self._pickled = pickle.dumps(value, protocol=5, buffer_callback=self._in_band)

    def _in_band(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether a buffer stays in the message: it is small or may be written to, or files are refused."""
        raw = buffer.raw()
        if not IN_MEMORY or raw.nbytes < LEAST or not raw.readonly:
            return True
        try:
            with os.fdopen(os.memfd_create("fianchetto"), "wb") as file:
                file.write(raw)
                file.flush()
                self._files.append((os.dup(file.fileno()), raw.nbytes))
        except OSError:  # a sandbox forbids it, or there is no memory or descriptor left
            return True
        return False

    def send(self, pipe: Connection) -> None:
        """Send the value; raises OSError where the other end is closed."""
        pipe.send((self._pickled, [size for _, size in self._files]))
        for descriptor, _ in self._files:
            send_handle(pipe, descriptor, None)

    def close(self) -> None:
        """Close the files; a receiver keeps what it maps."""
        while self._files:
            os.close(self._files.pop()[0])


def receive(pipe: Connection) -> Any:
    """Return the value of a message; raises EOFError where the other end is closed."""
    pickled, sizes = pipe.recv()
    buffers = [_mapped(recv_handle(pipe), size) for size in sizes]
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301 - from the process that started this one


def _mapped(descriptor: int, size: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
