"""Create an engine from its name."""

from pipeline.errors import ConfigError
from pipeline.executors.local import LOCAL, Engine, LocalEngine
from pipeline.executors.ray import RayEngine


def make_engine(name: str, workers: int = 0) -> Engine:
    """Create the engine called `name`, on at most `workers` cores (0: all).

    `local` uses processes on this machine, and `ray` starts Ray here for the duration of the work.
    `ray:HOST:PORT` or `ray:auto` joins a cluster from one of its nodes; `ray://HOST:PORT` connects
    from outside. Raises ConfigError if the name is unknown or Ray is not installed.
    """
    if name == LOCAL:
        return LocalEngine(workers)
    kind, colon, address = name.partition(":")
    if kind != "ray" or (colon and not address.strip("/")):
        raise ConfigError(
            f"unknown engine {name!r}: use local, ray, ray:HOST:PORT or ray://HOST:PORT"
        )
    return RayEngine(name if address.startswith("//") else address, workers)
