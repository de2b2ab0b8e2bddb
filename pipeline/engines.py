"""Which engine the work is spread by, named by one setting.

| name | what it is |
|---|---|
| `local` | processes on this machine, `LocalEngine`; for training this process, or those of torchrun |
| `ray` | an own Ray on this machine, its listeners on loopback, gone when the work is done |
| `ray:HOST:PORT`, `ray:auto` | a Ray cluster, from one of its nodes |
| `ray://HOST:PORT` | a Ray cluster, from outside, through its client server |

Nothing of Ray is imported unless it is asked for.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.errors import ConfigError
from pipeline.workers import Engine, LocalEngine

LOCAL = "local"


def engine_of(name: str, workers: int = 0, cpus_per_task: float = 1.0) -> Engine:
    """Give the engine of a name, using at most `workers` cores (0: all that it has).

    Raises ConfigError for a name that is none of the table, or where Ray is not installed.
    """
    if name == LOCAL:
        return LocalEngine(workers)
    address = _address(name)
    from pipeline.ray_engine import RayEngine

    return RayEngine(address, workers, cpus_per_task)


def trainer_of(name: str, processes: int = 0) -> Callable[..., dict[str, Any]]:
    """Give what trains by the engine of a name: `pipeline.training.train_on`, or a function with its parameters.

    `processes` share each batch; 0 for one a GPU that Ray has, or one where it has none. Raises ConfigError for a name that
    is none of the table, and for processes that are torchrun's to start.
    """
    if name == LOCAL:
        if processes > 1:
            raise ConfigError(f"the engine local trains in one process: torchrun --nproc-per-node {processes}, or ray")
        from pipeline.training import train_on

        return train_on
    if processes < 0:
        raise ConfigError(f"processes is {processes}, and must be 0 or more")
    address = _address(name)
    from pipeline.ray_train import train_by_ray

    return partial(train_by_ray, address, processes)


def _address(name: str) -> str:
    """Give the address of the Ray that a name means, "" for an own one."""
    kind, colon, address = name.partition(":")
    if kind != "ray" or (colon and not address.strip("/")):
        raise ConfigError(f"an engine is local, ray, ray:HOST:PORT or ray://HOST:PORT, not {name!r}")
    return name if address.startswith("//") else address
