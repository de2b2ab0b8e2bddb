"""What trains, by the name of an engine (pipeline/executors/by_name.py); nothing of Ray is imported unless it is asked for."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.errors import ConfigError
from pipeline.executors.by_name import LOCAL, ray_address


def trainer_of(name: str, processes: int = 0) -> Callable[..., dict[str, Any]]:
    """Return what trains by the engine of a name: `pipeline.training.train.train_on`, or a function with its parameters.

    `processes` share each batch; 0 for one a GPU that Ray has, or one where it has none. Raises ConfigError for a name that
    is none of the table, and for processes that are torchrun's to start.
    """
    if name == LOCAL:
        if processes > 1:
            raise ConfigError(f"the engine local trains in one process: torchrun --nproc-per-node {processes}, or ray")
        from pipeline.training.train import train_on

        return train_on
    if processes < 0:
        raise ConfigError(f"processes is {processes}, and must be 0 or more")
    address = ray_address(name)
    from pipeline.training.ray import train_by_ray

    return partial(train_by_ray, address, processes)
