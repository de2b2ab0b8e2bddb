"""What a process is sent of megabytes goes through memory that both see, and not through the pipe.

A pipe takes 200 kB at a time: a chunk of 8 MiB was copied four times, 3 ms of the driver's and 13 ms of the worker's time, of
the 500 it is worked on (docs/log.md). Where the system has nameless files in memory (Linux), what pickle gives out of band
(PEP 574) is written to one, whose handle follows the message; it is gone with the last process that holds it, however that
ends. Elsewhere it follows the message through the pipe. An object says what of it is large by `pickle.PickleBuffer`
(`pipeline.dumps.reader.Chunk` does), and gets it back as a read-only memoryview.
"""

import mmap
import os
import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

IN_MEMORY = hasattr(os, "memfd_create")
LEAST = 1 << 18
"""Bytes that are worth a file."""


class Parcel:
    """A value made ready to be sent, as often as it must be: it is packed while workers work, and sent while one waits."""

    def __init__(self, value: object) -> None:
        """Pickle a value, and write its large parts where they can be seen."""
        large: list[memoryview] = []

        def in_band(buffer: pickle.PickleBuffer) -> bool:
            """Keep small buffers in the message, and those that may be written to: who gets them may do so too."""
            raw = buffer.raw()
            if raw.nbytes < LEAST or not raw.readonly:
                return True
            large.append(raw)
            return False

        self._message = pickle.dumps(value, protocol=5, buffer_callback=in_band)
        self._sizes = [part.nbytes for part in large]
        self._parts = large
        self._handles: list[int] = []
        if IN_MEMORY:
            try:
                for part in large:
                    self._handles.append(os.memfd_create("fianchetto"))
                    _write(self._handles[-1], part)
                self._parts = []
            except OSError:  # a sandbox forbids it, or nothing more can be opened: there is the pipe
                self._let_go()

    def post(self, pipe: Connection) -> None:
        """Send it; raises OSError where the other end is gone."""
        pipe.send((self._message, self._sizes, bool(self._handles)))
        for handle in self._handles:
            send_handle(pipe, handle, None)
        for part in self._parts:
            pipe.send_bytes(part)

    def close(self) -> None:
        """Let go of it: who has received it still has it."""
        self._let_go()
        self._parts.clear()

    def _let_go(self) -> None:
        while self._handles:
            os.close(self._handles.pop())


def _write(handle: int, part: memoryview) -> None:
    with os.fdopen(handle, "wb", buffering=0, closefd=False) as file:
        written = 0
        while written < part.nbytes:
            written += file.write(part[written:]) or 0


def receive(pipe: Connection) -> Any:
    """Receive the value of a parcel; raises EOFError where the other end is gone."""
    message, sizes, in_memory = pipe.recv()
    parts = [(_seen if in_memory else _read)(pipe, size) for size in sizes]
    return pickle.loads(message, buffers=parts)  # noqa: S301 - of the process that made us, as all that comes by a pipe


def _seen(pipe: Connection, size: int) -> memoryview:
    handle = recv_handle(pipe)
    try:
        return memoryview(mmap.mmap(handle, size, prot=mmap.PROT_READ))
    finally:
        os.close(handle)


def _read(pipe: Connection, size: int) -> memoryview:
    part = bytearray(size)
    pipe.recv_bytes_into(part)
    return memoryview(part).toreadonly()
