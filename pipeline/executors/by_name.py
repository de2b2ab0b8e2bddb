"""Engines by their name."""

from pipeline.errors import ConfigError
from pipeline.executors.local import LOCAL, Engine, LocalEngine
from pipeline.executors.ray import RayEngine


def engine_of(name: str, workers: int = 0) -> Engine:
    """Return the engine of a name on at most `workers` cores (0: all); raises ConfigError.

    `local` is processes on this machine, `ray` a new Ray that ends with the work, `ray:HOST:PORT`
    or `ray:auto` a cluster from one of its nodes, `ray://HOST:PORT` a cluster from outside.
    """
    if name == LOCAL:
        return LocalEngine(workers)
    kind, colon, address = name.partition(":")
    if kind != "ray" or (colon and not address.strip("/")):
        raise ConfigError(
            f"unknown engine {name!r}: use local, ray, ray:HOST:PORT or ray://HOST:PORT"
        )
    return RayEngine(name if address.startswith("//") else address, workers)
