"""Training by Ray Train: `pipeline.training.train.train_on` in each of its workers, which is the same loop as under torchrun.

    driver -> trainer, a task: TorchTrainer.fit -> workers: train_on, one process of the run each
       '----> desk, an actor: ticks and the card come back, the wish to stop goes out <----'

Our own saves are the only checkpoint: a group that lost a worker is started again and continues from the last one, as the
same command does. Ray's own retries would repeat a person's mistake as they do a lost machine, so this module counts them:
at most `ATTEMPTS` in a row without a save between them.

Torch's usual meeting point listens on all of a machine's interfaces, so the processes of an own Ray meet in a file instead,
and everything stays on loopback.

On a cluster every node holds the same Fianchetto, and sees the datasets and `out` under the same names. The trainer is a
task so that a driver outside the cluster (`ray://`) need not be near, and none that is busy with `fit` fails to hear Ctrl-C.
"""

import hashlib
import importlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.progress import Progress, Stop, Tick, never, silent
from model.training.config import TrainConfig
from pipeline.errors import ConfigError, LostError, Stopped
from pipeline.executors.local import available_cores
from pipeline.executors.ray import RayEngine, first_line

ATTEMPTS = 3
"""Groups of workers that may be lost one after the other, none of which saved anything."""
STARTS = 10
"""Times that a group may wait for room in the cluster, a minute each."""
LOOK_SECONDS = 0.5
"""How often the driver looks at the desk."""
ASK_SECONDS = 1.0
"""How often worker 0 asks the desk whether to stop."""
BUSY_SECONDS = 5.0
"""How long a lost group has to let go of the run's directory before the next one begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What each worker is told."""

    positions: tuple[str, ...]
    preset: str
    config: TrainConfig
    out: str
    start: str | None
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Room:
    """What is asked of the cluster."""

    processes: int
    cpus: int
    """Cores of each process."""
    gpu: bool
    """Whether each has a GPU."""
    own: bool = True
    """Whether all of them are on this machine, in an own Ray."""

    @property
    def backend(self) -> str:
        """Name what the processes talk by, as model.training.distributed does."""
        return "cpu:gloo,cuda:nccl" if self.gpu else "gloo"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What the driver sees on the desk."""

    tick: Tick | None = None
    begun: int | None = None
    """Step that the group began at, None before it did."""
    card: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failed:
    """How a group ended that did not finish."""

    mistakes: tuple[UserError | OSError, ...] = ()
    """What a person can mend, by the number of the worker."""
    gist: str
    """Why, in a few words."""
    said: str
    """Why, in all words that there are."""
    lost: bool = True
    """Whether a worker or Ray itself was lost; else something was raised that nobody foresaw."""


class _Desk:
    """An actor between worker 0 and the driver, one for each group."""

    def __init__(self) -> None:
        self.tick: Tick | None = None
        self.begun: int | None = None
        self.card: dict[str, Any] | None = None
        self.stopping = False

    def begin(self, step: int) -> None:
        """Hear from worker 0 which step it begins at."""
        self.begun = step

    def tell(self, tick: Tick) -> None:
        """Hear from worker 0 how far it is."""
        self.tick = tick

    def end(self, card: dict[str, Any]) -> None:
        """Hear from worker 0 that it is done."""
        self.card = card

    def asked(self) -> bool:
        """Tell worker 0 whether to stop."""
        return self.stopping

    def look(self, stop: bool) -> _Seen:
        """Hear from the driver whether to stop, and show it what there is."""
        self.stopping |= stop
        return _Seen(tick=self.tick, begun=self.begun, card=self.card)


def train_by_ray(
    address: str,
    processes: int,
    positions: Sequence[Path],
    preset_name: str,
    config: TrainConfig,
    out: Path,
    progress: Progress = silent,
    stop: Stop = never,
    start: Path | None = None,
) -> dict[str, Any]:
    """Do what `pipeline.training.train.train_on` does, in `processes` workers of the Ray at `address` ("": an own one).

    0 processes are one a GPU, or one where Ray has none. Raises what train_on does, as one error whichever worker raised it;
    LostError when workers were lost too often, Stopped when it was asked to stop before they began, IngestError for a Ray
    that cannot be reached, and ConfigError for what it has no room for.
    """
    from model.training.distributed import world

    if world().size > 1:
        raise ConfigError("Ray starts the processes by itself: without torchrun, --processes says how many")
    engine = RayEngine(address, max(processes, available_cores()) if not address else 0)
    _require_ray_train()
    if not address:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    job = _Job(
        positions=tuple(_name(path) for path in positions),
        preset=preset_name,
        config=config,
        out=_name(out),
        start=None if start is None else _name(start),
        version=_version(),
    )
    with engine.connected():
        ray: Any = importlib.import_module("ray")
        room = replace(_room(ray.nodes(), config, processes), own=not address)
        return _persist(ray, job, room, progress, stop)


def _require_ray_train() -> None:
    """Raise ConfigError where Ray is there without what its Train needs."""
    try:
        importlib.import_module("ray.train.torch")
    except ImportError as error:
        raise ConfigError('training by Ray needs Ray Train: pip install "fianchetto[ray]"') from error


def _name(path: Path) -> str:
    """Name a place so that a worker in another folder finds it."""
    return str(path.absolute() if isinstance(path, Path) else path)


def _version() -> str:
    """Hash the sources, which all workers of a run must share."""
    root = Path(__file__).resolve().parents[2]
    total = hashlib.sha256()
    for room in ("engine", "model", "pipeline"):
        for path in sorted((root / room).rglob("*.py")):
            total.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return total.hexdigest()[:16]


def _room(nodes: Sequence[dict[str, Any]], config: TrainConfig, processes: int) -> _Room:
    """Say what to ask of a cluster's nodes; ConfigError for more than they have."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = int(sum(node.get("GPU", 0) for node in resources))
    if config.device == "cuda" and not gpus:
        raise ConfigError("device is cuda, and Ray has no GPU")
    gpu = config.device != "cpu" and gpus > 0
    count = processes or (gpus if gpu else 1)
    if gpu and count > gpus:
        raise ConfigError(f"{count} processes want a GPU each, and Ray has {gpus}: ask for fewer, or for --device cpu")
    hosts = [int(node.get("CPU", 0)) for node in resources if node.get("CPU", 0) >= 1 and (node.get("GPU") or not gpu)]
    if count > sum(hosts):
        raise ConfigError(f"{count} processes want a core each, and Ray has {sum(hosts)}")
    on_one = -(-count // len(hosts))  # spread evenly, over nodes that are all taken for the smallest
    share = max(1, min(hosts) // on_one)
    return _Room(processes=count, cpus=min(share, config.threads or share), gpu=gpu)


def _persist(ray: Any, job: _Job, room: _Room, progress: Progress, stop: Stop) -> dict[str, Any]:
    """Let groups train, one after the other is lost, until the run is over or stopped."""
    furthest, vain = -1, 0
    gists: list[str] = []
    while True:
        seen, failed = _attempt(ray, job, room, progress, stop)
        if seen.card is not None:  # what went wrong after worker 0 was done is nothing of the run's
            replaced = f"; {len(gists)} lost groups were replaced (the last: {gists[-1]})" if gists else ""
            return {**seen.card, "message": f"{seen.card['message']}{replaced}"}
        assert failed is not None
        _raise_mistake(failed, patient=bool(gists))
        gists.append(failed.gist)
        if stop():
            raise Stopped("stopped while lost workers were being replaced; run the same command to continue")
        begun = -1 if seen.begun is None else seen.begun
        furthest, vain = max(furthest, begun), 1 if begun > furthest else vain + 1
        if vain == ATTEMPTS:
            message = f"the run was lost {ATTEMPTS} times without a save between ({gists[-1]})"
            if failed.lost:
                raise LostError(f"{message}: see to the cluster and run the same command to continue")
            raise RuntimeError(f"{message}\n{failed.said}")
        time.sleep(BUSY_SECONDS)


def _raise_mistake(failed: _Failed, *, patient: bool) -> None:
    """Raise what a person can mend; not that the directory is locked, which after a loss is the lost group's doing."""
    from model.checkpoint import CheckpointBusyError
    from model.training.distributed import WorldError

    first = [error for error in failed.mistakes if not isinstance(error, WorldError)] or list(failed.mistakes)
    if first and not (patient and isinstance(first[0], CheckpointBusyError)):
        raise first[0]


def _attempt(ray: Any, job: _Job, room: _Room, progress: Progress, stop: Stop) -> tuple[_Seen, _Failed | None]:
    """Let one group train; give what was last seen of it, and how it failed if it did."""
    seen = _Seen()
    desk = ray.remote(_Desk).options(num_cpus=0).remote()
    task = ray.remote(_fit).options(num_cpus=0, max_retries=0).remote({"job": job, "desk": desk}, room)
    try:
        ended = False
        while not ended:
            ended = bool(ray.wait([task], timeout=LOOK_SECONDS)[0])
            before, wanted = seen.tick, stop()
            seen = ray.get(desk.look.remote(wanted))
            if seen.tick is not None and seen.tick != before:
                progress(seen.tick)
            if wanted and seen.begun is None and not ended:
                raise Stopped("stopped before the workers began; run the same command to continue")
        return seen, ray.get(task)
    except ray.exceptions.RayError as error:
        return seen, _Failed(gist=first_line(error), said=str(error))
    finally:
        with suppress(ray.exceptions.RayError, OSError, RuntimeError):
            ray.cancel(task, force=True)


def _fit(settings: dict[str, Any], room: _Room) -> _Failed | None:
    """Be the trainer: let Ray Train start the workers and watch them."""
    train: Any = importlib.import_module("ray.train")
    of_torch: Any = importlib.import_module("ray.train.torch")
    if room.own:
        meeting = importlib.import_module("ray.train.backend").BackendConfig()  # which lets _work meet by itself
        meeting.backend = room.backend
    else:
        meeting = of_torch.TorchConfig(backend=room.backend)
    with tempfile.TemporaryDirectory(prefix="ray-train-", ignore_cleanup_errors=True) as folder:
        trainer = of_torch.TorchTrainer(
            _work,
            train_loop_config=settings | {"meeting": Path(folder) / "meeting", "room": room},
            torch_config=meeting,
            scaling_config=train.ScalingConfig(
                num_workers=room.processes,
                use_gpu=room.gpu,
                resources_per_worker={"CPU": room.cpus, **({"GPU": 1} if room.gpu else {})},
            ),
            run_config=train.RunConfig(
                storage_path=folder,  # Ray Train wants one; nothing is reported to it
                failure_config=train.FailureConfig(max_failures=0, controller_failure_limit=STARTS),
            ),
        )
        try:
            trainer.fit()
        except train.WorkerGroupError as error:
            return _failed(str(error), error.worker_failures)
        except train.ControllerError as error:
            return _Failed(gist=first_line(error.controller_failure), said=str(error))
        except train.TrainingFailedError as error:
            return _Failed(gist=first_line(error), said=str(error))
    return None


def _failed(said: str, failures: Mapping[int, Exception]) -> _Failed:
    """Sort what workers raised: people's mistakes, workers that Ray lost, and the rest."""
    lost = [rank for rank, error in failures.items() if type(error).__module__.partition(".")[0] == "ray"]
    raised = [f"worker {rank}: {type(error).__name__}: {first_line(error)}" for rank, error in failures.items()]
    return _Failed(
        mistakes=tuple(error for _, error in sorted(failures.items()) if isinstance(error, UserError | OSError)),
        gist=f"worker {min(lost)} died" if lost else raised[0],
        said=said,
        lost=bool(lost),
    )


def _work(settings: dict[str, Any]) -> None:
    """Be one worker: train, as one process of the run that Ray Train has put into the environment."""
    job, desk, room = settings["job"], settings["desk"], settings["room"]
    if (ours := _version()) != job.version:
        where = f"node {socket.gethostname()} has another Fianchetto ({ours}, the driver {job.version})"
        raise ConfigError(f"{where}: install the same")
    with _met(settings["meeting"], room) if room.own else nullcontext():
        _train(job, desk)


@contextmanager
def _met(meeting: Path, room: _Room) -> Iterator[None]:
    """Meet the other processes of this machine in a file, each of which sees its own GPU alone."""
    import torch.distributed as dist

    context = importlib.import_module("ray.train").get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"}
    if size > 1:
        dist.init_process_group(room.backend, init_method=meeting.as_uri(), rank=rank, world_size=size)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _train(job: _Job, desk: Any) -> None:
    """Train, worker 0 in touch with the desk."""
    from model.training.distributed import world
    from pipeline.storage.stores import place
    from pipeline.training.train import train_on

    get: Callable[[Any], Any] = importlib.import_module("ray").get
    first = world().first
    if first:
        get(desk.begin.remote(_saved(Path(job.out))))
    card = train_on(
        [place(name) for name in job.positions],
        job.preset,
        job.config,
        Path(job.out),
        desk.tell.remote if first else silent,
        _now_and_then(lambda: bool(get(desk.asked.remote()))) if first else lambda: False,
        None if job.start is None else Path(job.start),
    )
    if first:
        get(desk.end.remote(card))


def _saved(out: Path) -> int:
    """Return the step of the save that a run continues from, 0 for none."""
    from model.checkpoint import CARD, read_card

    return int(read_card(out)["step"]) if (out / CARD).exists() else 0


def _now_and_then(ask: Callable[[], bool]) -> Callable[[], bool]:
    """Ask at most every `ASK_SECONDS`, and say in between what was answered last."""
    answer, at = False, -ASK_SECONDS

    def stop() -> bool:
        nonlocal answer, at
        if time.monotonic() - at >= ASK_SECONDS:
            answer, at = ask(), time.monotonic()
        return answer

    return stop
