"""Check and measure this machine's GPU: `make gpu`, or `python -m benchmarks.gpu`.

The tests marked `gpu` come first, then the speed of training by preset and batch size, of preparing
batches, of search and of evaluation. A line is printed for each result, and all of them at the end
as a Markdown table for docs/benchmarks.md. Measurements for which no time is left are skipped, and
the table says so. Without a GPU, the same code runs on the CPU with small sizes, to show that it
works.
"""

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any

import click
import torch

from benchmarks.search import measure_search
from engine.cores import count_cores
from engine.errors import UserError
from model.data.prefetch import Prefetcher, count_threads
from model.data.rows import Batch
from model.inference.evaluator import NetworkEvaluator
from model.network.network import build
from model.network.presets import preset, presets
from model.training.config import TrainConfig
from model.training.monitor import read_metrics
from model.training.step import new_run, prepare_parts, take_step
from pipeline.dataset.batches import Batches
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import SAMPLE_DUMP
from pipeline.training.train import select_columns, train_on_datasets

DEFAULT_MINUTES = 8.0
TRAINED_PRESETS = ("fianchetto-human", "fianchetto-m")
"""Presets to train; on a GPU, those with attention blocks are added."""
MEASURED_SECONDS = 3.0
"""Seconds of one measurement, after its warm-up steps."""
WARM_UP_STEPS, STEPS_PER_WAIT = 8, 5
"""Steps before a measurement, with graph capture, and steps between two waits for the device."""


@dataclass
class Report:
    """The results so far; no measurement begins that would end after `deadline`."""

    deadline: float
    """Time on the clock of `time.perf_counter`."""
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """Rows of the table: the measurement, its settings, and its result."""

    def add(
        self, what: str, how: str, seconds: float, measure: Callable[..., str], *args: Any
    ) -> None:
        """Add the result of `measure`, or the reason if it failed or `seconds` are not left."""
        click.echo(f"{what}, {how} ...")
        result = "skipped: no time left"
        if time.perf_counter() + seconds < self.deadline:
            try:
                result = measure(*args)
            except torch.OutOfMemoryError:
                result = "skipped: not enough GPU memory"
            except (RuntimeError, UserError) as error:  # continue with the other measurements
                result = f"failed: {error}".partition("\n")[0]
        self.rows.append((what, how, result))
        click.echo(f"{what}, {how}: {result}")

    def to_markdown(self) -> str:
        """Return the results as a Markdown table."""
        head = ["| what | how | result |", "|---|---|---|"]
        return "\n".join(head + [f"| {' | '.join(row)} |" for row in self.rows])


def wait_for_device(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def describe_machine(device: torch.device) -> str:
    """Describe the GPU or processor, the number of cores, and torch's version."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{name}, {count_cores()} cores, torch {torch.__version__}"


def run_tests(device: torch.device) -> str:
    """Run this device's tests, and return the last line of pytest's output."""
    tests = ["tests/model/test_gpu.py", "tests/model/data/test_prefetch.py", "-m", "gpu"]
    if device.type == "cpu":
        tests = ["tests/model/training/test_graphs.py"]
    options = ["-v", "-s", "-p", "no:cacheprovider", "--timeout", "200"]
    command = [sys.executable, "-m", "pytest", *tests, *options]
    root, last_line = Path(__file__).resolve().parents[1], "failed: no test ran"
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            click.echo(line.rstrip())
            last_line = line.strip(" =\n") or last_line
    return last_line


def measure_training(config: TrainConfig, name: str, batches: list[Batch]) -> str:
    """Train on prepared batches; return the speed and, on a GPU, warm-up time and peak memory."""
    run = new_run(config, preset(name))
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
    prepared = [prepare_parts(run, batch) for batch in batches]
    steps, seconds = 0, list[float]()
    while steps < WARM_UP_STEPS or sum(seconds[WARM_UP_STEPS:]) < MEASURED_SECONDS:
        began = time.perf_counter()
        for _ in range(1 if steps < WARM_UP_STEPS else STEPS_PER_WAIT):
            take_step(run, prepared[steps % len(prepared)], 0.5)
            steps += 1
        wait_for_device(run.device)
        seconds.append(time.perf_counter() - began)
    step_seconds = median(seconds[WARM_UP_STEPS:]) / STEPS_PER_WAIT
    run.graphs = None
    speed = f"{config.batch_size / step_seconds:,.0f} positions/s"
    result = f"{speed}, {1000 * step_seconds:.1f} ms a step"
    if run.device.type == "cuda":
        slowest = max(seconds[1:WARM_UP_STEPS])
        peak = torch.cuda.max_memory_allocated(run.device) / 2**30
        result += f", first steps up to {slowest:.1f} s, {peak:.1f} GiB"
    return result


def measure_feeding(config: TrainConfig, positions: Path, threads: int) -> str:
    """Read and prepare batches on threads, and return the speed."""
    run = new_run(config, preset(TRAINED_PRESETS[0]))
    columns = select_columns(config, run.preset)
    stream = Batches([positions], "train", batch_size=config.batch_size, columns=columns)
    prepare = partial(prepare_parts, run)
    with Prefetcher(stream.from_step(0), prepare, run.device, threads) as prefetcher:
        for _ in range(threads + 2):
            prefetcher.take_parts()
        batches, began = 0, time.perf_counter()
        while time.perf_counter() - began < MEASURED_SECONDS:
            prefetcher.take_parts()
            batches += 1
        wait_for_device(run.device)
        seconds = time.perf_counter() - began
    return f"{batches * config.batch_size / seconds:,.0f} positions/s"


def measure_train_command(config: TrainConfig, positions: Path, out: Path) -> str:
    """Train as the command does; return the speed and the share of time waiting for batches."""
    train_on_datasets([positions], TRAINED_PRESETS[0], config, out)
    lines = [line for line in read_metrics(out) if "data_wait" in line][-3:]
    names = ("positions_per_second", "data_wait")
    speed, wait = (mean(line[name] for line in lines) for name in names)
    return f"{speed:,.0f} positions/s, waiting for batches {wait:.1%}, loss {lines[-1]['loss']:.3f}"


def measure_evaluation(device: torch.device, batch: Batch, uses_graphs: bool) -> str:
    """Evaluate the same batch repeatedly, and return the speed."""
    evaluate = NetworkEvaluator(build(preset(TRAINED_PRESETS[0]), 0), device=device.type)
    if not uses_graphs:
        evaluate.graphs = None
    for _ in range(5):
        evaluate(batch["planes"], batch)
    positions, began = 0, time.perf_counter()
    while time.perf_counter() - began < MEASURED_SECONDS:
        evaluate(batch["planes"], batch)
        positions += len(batch["planes"])
    return f"{positions / (time.perf_counter() - began):,.0f} positions/s"


def measure_searches(device: str, processes: int, games: int) -> str:
    """Search in several processes at once, and return the sum of their speeds."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        rates = pool.map(search_in_process, [device] * processes, [games] * processes)
        return f"{sum(rates):,.0f} simulations/s"


def search_in_process(device: str, games: int) -> float:
    """Return the simulations per second of this process."""
    torch.set_num_threads(1)
    evaluate = NetworkEvaluator(build(preset(TRAINED_PRESETS[0]), 0), device=device)
    return measure_search(10, games, evaluate, time.perf_counter)


def ingest_sample(out: Path) -> str:
    """Make a dataset of the bundled games; compiles kernels that are not cached yet."""
    began = time.perf_counter()
    manifest = ingest([str(SAMPLE_DUMP)], out, IngestConfig(planes="compact", val_share=0.0))
    rows, seconds = sum(manifest["positions"].values()), time.perf_counter() - began
    return f"{rows:,} positions in {seconds:.0f} s"


def measure_all(report: Report, device: torch.device, folder: Path) -> None:
    """Measure everything, the most important things first, and add the results to the report."""
    is_gpu, human, positions = device.type == "cuda", TRAINED_PRESETS[0], folder / "positions"
    report.add("tests", device.type, 60, run_tests, device)
    report.add("ingest", SAMPLE_DUMP.name, 0, ingest_sample, positions)
    sizes = (2048, 512, 8192) if is_gpu else (64,)
    attention = [name for name, row in presets().items() if str(row.block) == "attention"]
    names = [*TRAINED_PRESETS, *attention] if is_gpu else [human]
    config = TrainConfig(steps=10**6, batch_size=sizes[0], device="cuda" if is_gpu else "cpu")
    columns = {column for name in names for column in select_columns(config, preset(name))}
    stream = Batches([positions], "train", batch_size=max(sizes), columns=sorted(columns))
    batches = list(islice(stream.from_step(0), 3))

    def add_training(name: str, variant: str, config: TrainConfig) -> None:
        size = config.batch_size
        cut = [{key: column[:size] for key, column in batch.items()} for batch in batches]
        how = f"{name}, batches of {size:,}{variant}"
        report.add("training", how, 10, measure_training, config, name, cut)

    for name in names:
        add_training(name, "", config)
    if is_gpu:
        add_training(human, ", without graphs", replace(config, graphs=False))
        add_training(human, ", statistics of all rows", replace(config, norm_rows=sizes[0]))
    for threads in sorted({1, 2, 4, 8, count_threads(device, 0, 1)}) if is_gpu else (1, 2):
        how = f"{human}, {threads} threads"
        report.add("feeding", how, 8, measure_feeding, config, positions, threads)
    timed = replace(config, steps=None, minutes=0.25 if is_gpu else 0.05)
    how, out = f"{human}, batches of {sizes[0]:,}", folder / "trained"
    report.add("train command", how, 30, measure_train_command, timed, positions, out)
    games = 512 if is_gpu else 2
    for processes in sorted({1, count_cores()}) if is_gpu else (1,):
        how = f"{human}, {games} games in each of {processes} processes"
        report.add("search", how, 60, measure_searches, device.type, processes, games)
    for size in (1, 64, 512, 2048) if is_gpu else (16,):
        batch = {name: column[:size] for name, column in batches[0].items()}
        for uses_graphs in (True, False) if is_gpu else (True,):
            how = f"{human}, batches of {size:,}{'' if uses_graphs else ', without graphs'}"
            report.add("evaluation", how, 5, measure_evaluation, device, batch, uses_graphs)
    for size in sizes[1:]:
        for name in names:
            add_training(name, "", replace(config, batch_size=size))


@click.command(context_settings={"show_default": True})
@click.option(
    "--minutes", default=DEFAULT_MINUTES, help="Minutes in total; what takes longer is skipped."
)
def main(minutes: float) -> None:
    """Check and measure this machine's GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
        click.echo("torch finds no GPU: this run only shows that the code works")
    click.echo(describe_machine(device))
    report = Report(time.perf_counter() + 60 * minutes)
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        measure_all(report, device, Path(folder))
    click.echo(f"\n{describe_machine(device)}\n\n{report.to_markdown()}")
    if any("failed" in result for _, _, result in report.rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
