"""Choose the engine that work runs on by its name.

| name | engine |
|---|---|
| `local` | processes on this machine, `LocalEngine` |
| `ray` | a new Ray on this machine, which listens on loopback and ends with the work |
| `ray:HOST:PORT`, `ray:auto` | a Ray cluster, from one of its nodes |
| `ray://HOST:PORT` | a Ray cluster, from outside, through its client server |

Ray is imported only if it is named.
"""

from pipeline.errors import ConfigError
from pipeline.executors.local import Engine, LocalEngine

LOCAL = "local"


def engine_of(name: str, workers: int = 0) -> Engine:
    """Return the engine of a name on at most `workers` cores (0: all); raises ConfigError."""
    if name == LOCAL:
        return LocalEngine(workers)
    kind, colon, address = name.partition(":")
    if kind != "ray" or (colon and not address.strip("/")):
        raise ConfigError(
            f"an engine is local, ray, ray:HOST:PORT or ray://HOST:PORT, not {name!r}"
        )
    from pipeline.executors.ray import RayEngine

    return RayEngine(name if address.startswith("//") else address, workers)
