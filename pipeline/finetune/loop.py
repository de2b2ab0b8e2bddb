"""Run the fine-tuning loop: the stages EXPLORE, TRAIN, ARENA and EVAL, then a verdict.

The loop is a state machine over `State`: it runs the first unfinished stage, records its figures,
and repeats. So it can be killed at any moment and resumed. The stages are functions
(pipeline/finetune/stages.py), so that tests can run the loop without a network.
"""

import logging
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.dataset import Dataset
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.executors.by_name import make_engine
from pipeline.executors.local import LOCAL
from pipeline.finetune.config import CHANGEABLE_SETTINGS, FinetuneConfig
from pipeline.finetune.stages import DEFAULT_STAGES, Stage, StageContext, decide, write_supervised
from pipeline.finetune.state import (
    BEST_FOLDER,
    FORMAT_VERSION,
    FinetuneError,
    Generation,
    Verdict,
    format_generations,
    locate_checkpoint,
    locate_generation,
    publish_state,
    read_state,
    read_weights_hash,
    update_derived_files,
)
from pipeline.finetune.teacher import adapt_to_hand_written, compare_teachers
from pipeline.selfplay.config import ONNX_DEVICE
from pipeline.selfplay.draw import identify_datasets
from pipeline.storage.job_folder import FINETUNING_KIND, JobFolder, flatten_leaves

LOG = logging.getLogger(__name__)
STAGE_LABELS = {"explore": "self-play", "train": "train", "arena": "gate", "eval": "eval"}
"""Names of the stages in progress messages."""


def finetune(
    checkpoint: Path,
    config: FinetuneConfig,
    out: Path,
    *,
    human: Sequence[Path] = (),
    stages: Mapping[str, Stage] = DEFAULT_STAGES,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Run a fine-tuning loop in `out`, or resume it, and return the result.

    `checkpoint` is the supervised network to start from, and `out/best` the best network. `human`
    are datasets or training sets: their positions are searched, mixed into training and used to
    measure the accuracy on human moves. Without them, the gate does not limit the loss of accuracy.

    Raises ConfigError, FinetuneError if `out` is damaged, in use or of another loop, Stopped if
    `stop` returns True or the minutes end before the first verdict, and the errors of the stages.
    """
    check_settings(config, human)
    folder = JobFolder(out, FINETUNING_KIND, FinetuneError, reads=[checkpoint, *human])
    folder.check()
    identity = identify_loop(checkpoint, human, config)
    with folder.lock():
        folder.claim(identity)
        write_supervised(checkpoint, human, out / "seed", {"generation": 0})
        return _Loop(config, out, tuple(human), stages, progress, stop).run()


def check_settings(config: FinetuneConfig, human: Sequence[Path]) -> None:
    """Raise ConfigError for contradictory settings, and for missing data, packages or engines."""
    if not config.explore.plays_games:
        raise ConfigError(
            "explore.source cannot be set for a loop: use --games-share and --near-share instead"
        )
    if config.sources.keys() - {"games"} and not human:
        raise ConfigError(
            "no datasets of human positions to search: name them with --positions, or only play "
            "games with --games-share 1"
        )
    if config.train.teach == "none" and not human:
        raise ConfigError("--teach none trains on human rows alone: name datasets with --positions")
    if config.explore.device == ONNX_DEVICE and not (find_spec("onnx") and find_spec("onnxscript")):
        raise ConfigError(
            "the device onnx needs packages for the export: pip install 'fianchetto[onnx]'"
        )
    if config.engine != LOCAL:
        make_engine(config.engine, config.workers)


def identify_loop(
    checkpoint: Path, human: Sequence[Path], config: FinetuneConfig
) -> dict[str, Any]:
    """Return the identity of a loop, which a resumed loop must share.

    It contains the supervised weights, the human datasets and all settings but CHANGEABLE_SETTINGS.
    Raises DatasetError for a dataset without training positions.
    """
    weights = read_weights_hash(checkpoint)
    for directory in human:
        if not Dataset.open(directory).has_rows("train"):
            raise DatasetError(f"{directory} has no positions in its train split to fine-tune on")
    settings = flatten_leaves(to_jsonable_python(config))
    fixed = {name: settings[name] for name in settings if name not in CHANGEABLE_SETTINGS}
    return {
        "format_version": FORMAT_VERSION,
        "checkpoint": {"name": checkpoint.resolve().name, "weights": weights},
        "human": identify_datasets(human),
        "config": fixed,
    }


class _Loop:
    """A running loop: its state, inputs and clock."""

    def __init__(
        self,
        config: FinetuneConfig,
        out: Path,
        human: tuple[Path, ...],
        stages: Mapping[str, Stage],
        progress: Progress,
        stop: Stop,
    ) -> None:
        self.config, self.out, self.human, self.stages = config, out, human, stages
        self.weights, self.progress, self.stop = read_weights_hash(out / "seed"), progress, stop
        self.state = read_state(out)
        self.counted_until = time.monotonic()
        """The time (time.monotonic) up to which `state.seconds` is counted."""

    def run(self) -> dict[str, Any]:
        """Run stages until the generations or minutes are reached; return the result."""
        update_derived_files(self.out, self.state)
        ended, best = "finished", self.out / BEST_FOLDER
        try:
            while (generation := self.state.open_generation(self.config.generations)) is not None:
                if self._must_stop():
                    raise Stopped("stopped between two stages")
                self._advance(generation)
        except Stopped:
            if self.stop():
                raise Stopped(
                    f"stopped; {best} is the best so far: run the same command to continue"
                ) from None
            ended = "time limit reached"
            if len(self.state.decided) < 2:
                done = "nothing was trained"
                if any("train" in generation.stages for generation in self.state.generations):
                    done = "one candidate was trained, but not measured"
                raise Stopped(
                    f"{done} in {self.config.minutes:g} minutes; {best} is the supervised network",
                    remedy="increase minutes, and run the same command again to continue",
                    code="too-short",
                ) from None
        finally:
            publish_state(self.out, self.state)  # records the time of an unfinished stage
        return self._make_result(ended)

    def _configure_generation(self, number: int) -> FinetuneConfig:
        """Return a generation's settings, adapted to its teacher, which is chosen if necessary."""
        teach, explore = self.config.train.teach, self.config.explore
        if teach in ("auto", "value") and not explore.uses_network:
            return adapt_to_hand_written(self.config, self._count_human_rows())
        if not number or teach != "auto" or self.config.sources.keys() == {"games"}:
            return self.config
        best = self.state.generations[self.state.best_before(number)]
        if best.teacher is None:
            checkpoint = locate_checkpoint(self.out, best.number)
            report = self._label_progress(number, "teacher")
            with self._track_time():
                best.teacher = compare_teachers(
                    checkpoint, self.human, explore.device, report, self._must_stop
                )
            publish_state(self.out, self.state)
            LOG.info("%s: %s", checkpoint, best.teacher.text)
        if best.teacher.hand_written_teaches:
            return adapt_to_hand_written(self.config, self._count_human_rows())
        return replace(self.config, train=replace(self.config.train, teach="none"))

    def _count_human_rows(self) -> int:
        opened = map(Dataset.open, self.human)
        return sum(
            dataset.count_rows("train") for dataset in opened if not dataset.has_engine_moves
        )

    def _must_stop(self) -> bool:
        minutes = self.config.minutes
        spent = self.state.seconds + time.monotonic() - self.counted_until
        return self.stop() or (minutes is not None and spent >= 60 * minutes)

    @contextmanager
    def _track_time(
        self, seconds: dict[str, float] | None = None, name: str = ""
    ) -> Iterator[None]:
        """Add the time of the block to the loop's seconds and, if given, to `seconds[name]`."""
        self.counted_until = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - self.counted_until
            self.counted_until += spent
            self.state.seconds += spent
            if seconds is not None:
                seconds[name] = seconds.get(name, 0.0) + spent

    def _advance(self, generation: Generation) -> None:
        """Run the generation's next stage or, after its last one, decide its verdict; record it."""
        name = generation.next_stage
        if name is None and not generation.number:
            generation.verdict = Verdict(promoted=True, reason="the supervised checkpoint")
        elif name is None:
            supervised, max_drop = self.state.figures(0, "eval"), self.config.gate.max_top1_drop
            generation.verdict = decide(generation.stages, supervised, max_drop)
            LOG.info("generation %d: %s", generation.number, generation.verdict.reason)
        else:
            context = self._make_context(generation.number)
            context.folder.mkdir(parents=True, exist_ok=True)
            report = self._label_progress(context.number, STAGE_LABELS[name])
            with self._track_time(generation.seconds, name):
                figures = self.stages[name](context, report, self._must_stop)
            generation.stages[name] = figures
        publish_state(self.out, self.state)
        update_derived_files(self.out, self.state)

    def _make_context(self, number: int) -> StageContext:
        best = self.state.best
        return StageContext(
            number=number,
            folder=locate_generation(self.out, number),
            candidate=locate_checkpoint(self.out, number),
            best=locate_checkpoint(self.out, best),
            supervised=locate_checkpoint(self.out, 0),
            buffer=self._list_buffer(number),
            human=self.human,
            config=self._configure_generation(number),
            requested=self.config,
            lineage={"generation": number, "played_by": best, "seed_weights_sha256": self.weights},
            spent=self.state.figures(best, "train").get("spent", {}),
        )

    def _list_buffer(self, number: int) -> tuple[Path, ...]:
        """List the self-play datasets that generation `number` is trained on, the newest last.

        They come from the last `buffer` generations, if these had the same explorer and `teach`.
        """
        settings, datasets = self._configure_generation(number), list[Path]()
        for recent in range(max(1, number - self.config.buffer + 1), number + 1):
            earlier = self._configure_generation(recent)
            same_targets = earlier.train.teach == settings.train.teach
            if same_targets and earlier.explore.explorer == settings.explore.explorer:
                datasets += [
                    locate_generation(self.out, recent) / source for source in earlier.sources
                ]
        return tuple(datasets)

    def _label_progress(self, number: int, stage: str) -> Progress:
        """Return a progress callback that adds the generation and stage to each report."""

        def report(tick: Tick) -> None:
            values = {"generation": number, **tick.values}
            self.progress(replace(tick, values=values, stage=f"generation {number}: {stage}"))

        return report

    def _make_result(self, ended: str) -> dict[str, Any]:
        """Return the best network's figures, a row per decided generation, and text to print."""
        state, teacher = self.state, self.state.last_comparison
        rows = [generation.to_row() for generation in state.decided]
        lineage = state.make_lineage()
        decision = [] if teacher is None else [textwrap.indent(teacher.text, "    "), ""]
        best = f"best: generation {state.best}, in {self.out / BEST_FOLDER} ({ended})"
        return {
            "out": str(self.out),
            "best": str(self.out / BEST_FOLDER),
            "generation": state.best,
            "generations": max(0, len(rows) - 1),
            "against_seed": lineage["against_seed"],
            "against_control": lineage["against_control"],
            "eval": state.figures(state.best, "eval"),
            "seed_eval": state.figures(0, "eval"),
            "rows": rows,
            "teacher": None if teacher is None else to_jsonable_python(teacher),
            "minutes": round(state.seconds / 60, 2),
            "ended": ended,
            "text": "\n".join([*decision, format_generations(rows), "", best]),
        }
