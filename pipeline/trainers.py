"""What trains, by the name of an engine (pipeline/engines.py); nothing of Ray is imported unless it is asked for."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.engines import LOCAL, ray_address
from pipeline.errors import ConfigError


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
    address = ray_address(name)
    from pipeline.ray_train import train_by_ray

    return partial(train_by_ray, address, processes)
