"""Measure how often a checkpoint's first choice is the human's move, in unseen games.

Every figure is a mean over the counted positions. Intervals treat a game as the sampling unit,
since the positions of one game are alike. The baselines are measured on the same rows.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.cores import cores
from engine.encoding.views import NO_LABEL
from engine.progress import Progress, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import LATEST, Dataset, Shard
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.position_keys import find_keys
from pipeline.dumps.paths import dumps_of
from pipeline.errors import ConfigError, DamagedError
from pipeline.evaluation.measure import BATCH, COLUMNS, COMMON_CLOCK, COMMON_PLY, measure_rows
from pipeline.evaluation.measure import Rule as Rule
from pipeline.samples.shipped import SAMPLE
from pipeline.training.train import count_positions, list_datasets

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from model.inference.evaluator import NetworkEvaluator
    from model.inference.onnx_evaluator import OnnxEvaluator
    from pipeline.evaluation.human_search import SearchedRows
    from pipeline.evaluation.rating_matrix import BandSample


CURVES = ("positions", "top1", "validation_top1")
"""Columns of a run's metrics that the page draws over the first."""
CHECKED, TOLERANCE = 4 * BATCH, 0.001
"""Positions on which the exported network is compared with torch's, and the tolerated difference in
top-1."""
PUBLISHED = ("Maia-2", 0.533)
"""A published top-1 on human games, measured on its authors' games (docs/benchmarks.md)."""


class _Where(NamedTuple):
    """The rows to measure on."""

    dataset: Dataset
    split: str
    words: str
    train: list[Shard]
    """Train shards, in which the measured positions are looked up."""
    dumps: Sequence[str]
    """Dumps of a single dataset, for links to games; empty if they are missing."""
    found: "list[NDArray[np.bool_]]"
    """The result of `look_up`, shared by all networks."""

    def look_up(
        self, keys_R: "NDArray[np.uint64]", progress: Progress
    ) -> "NDArray[np.bool_] | None":
        """Return which measured positions are in `train`, bool[R]; None without train shards."""
        if self.train and not self.found:
            self.found.append(find_keys(keys_R, self.train, progress))
        return self.found[0] if self.train else None


class _How(NamedTuple):
    """How to measure."""

    rule: Rule
    players: bool
    rating_rows: int
    fast: bool = True
    """Whether the exported network may be used. Its top-1 may differ by TOLERANCE, which could hide
    small differences between networks."""
    simulations: int = 0


@contextmanager
def _rows_of(
    positions: Path | None,
    split: str,
    pgn: Path | None,
    against: Sequence[Path],
    progress: Progress,
) -> Iterator[_Where]:
    """Return the rows of a dataset's split, or ingest a PGN file into a temporary folder."""
    if positions is not None:
        opened = Dataset.open(positions, progress)
        train = _train_shards(against or (opened,)) if split != "train" else []
        only = opened.parts[0]
        dumps = dumps_of(only.path, only.page) if len(opened.parts) == 1 else None
        words = f"the {split} split of {opened.name}"
        yield _Where(opened, split, words, train, dumps or [], [])
        return
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    assert pgn is not None
    with tempfile.TemporaryDirectory(prefix="fianchetto-report-") as folder:
        with suppress(DamagedError):  # the games before the damage are measured
            ingest([str(pgn)], Path(folder), IngestConfig(test_share=0.0, val_share=0.0), workers=1)
        opened = Dataset.open(Path(folder))
        damage = opened.page["sources"][0]["damage"]
        words = f"all games of {pgn.name}"
        if damage:
            words += f", up to where the archive is damaged ({damage})"
        yield _Where(opened, "train", words, _train_shards(against), [str(pgn)], [])


def report(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """Measure one checkpoint, as `reports` does.

    Returns the sentences `headline` and `compared`, `positions top1 top3 top5 cross_entropy
    legal_mass value_brier` (model/metrics.py) and the interval `top1_low top1_high`, None for too
    few games. Beside them are baselines, `rule` in words, `common_rule` (the same figures by that
    rule) and `slices` (figures.slices). `top1_not_in_train` and `top1_in_train` count positions by
    whether train has them, `rating_matrix` and `evaluated_by` are in words, and only the page shows
    `details`. `human_search` is there with `simulations` only. `cross_entropy` is in nats; values
    and clocks are the mover's.
    """
    return dict(reports([checkpoint], **options)["reports"][0])


def reports(
    checkpoints: Sequence[Path],
    *,
    positions: Path | None = None,
    split: str = "test",
    pgn: Path | None = None,
    against: Sequence[Path] = (),
    rule: Rule | None = None,
    players: bool = True,
    rating_rows: int = 0,
    simulations: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure checkpoints on the same rows: their `reports`, and `differences` from the first.

    `against` are datasets whose train split is searched for the measured positions; the default is
    that of `positions`. Without `players`, ratings and clocks are hidden from networks that read
    them. `rating_rows` positions of each rating band are evaluated under each rating. `simulations`
    searches every counted position, to compare the policy corrected by it with the policy alone
    (`human_search`). A difference is paired: both networks on the same positions, with the interval
    by games.
    """
    from model.checkpoint import read_card
    from pipeline.evaluation.figures import paired_difference

    if (positions is None) == (pgn is None):
        raise ConfigError("give either a dataset (positions) or a PGN file to measure on")
    for name, number in (("rating_rows", rating_rows), ("simulations", simulations)):
        if number < 0:
            raise ConfigError(f"{name} must be 0 or more, got {number}")
    for path in checkpoints:  # fail before minutes of ingest
        read_card(path)
    with _rows_of(positions, split, pgn, against, progress) as where:
        how = _How(
            rule or Rule(),
            players,
            rating_rows,
            fast=len(checkpoints) == 1,
            simulations=simulations,
        )
        measured = [_measure(path, where, how, progress) for path in checkpoints]
    names, first = _names(checkpoints), measured[0][1]
    differences = [
        {"name": name, "against": names[0], **paired_difference(first, table)}
        for name, (_, table) in list(zip(names, measured, strict=True))[1:]
    ]
    return {
        "names": names,
        "reports": [result for result, _ in measured],
        "differences": differences,
    }


def _names(checkpoints: Sequence[Path]) -> list[str]:
    """Return each checkpoint's folder name, with its parent where two are alike."""
    plain = [path.resolve().name for path in checkpoints]
    return [
        name if plain.count(name) == 1 else f"{path.resolve().parent.name}/{name}"
        for name, path in zip(plain, checkpoints, strict=True)
    ]


def _train_shards(datasets: Sequence[Path | Dataset]) -> list[Shard]:
    """Return the train shards of datasets and training sets."""
    return [shard for one in datasets for shard in Dataset.open(one).shards("train")]


def _seen(card: dict[str, Any], dataset: Dataset, split: str) -> str:
    """Return whether the network was trained on these games, by the hashes in its card."""
    answers = {_seen_dataset(card, part, split) for part in dataset.parts if part.has(split)}
    return next((word for word in ("yes", "unknown", "no") if word in answers), "no, another dump")


def _seen_dataset(card: dict[str, Any], measured: Dataset, split: str) -> str:
    """Return `_seen` of one dataset."""
    trained, digest = list_datasets(card["data"]), measured.identity
    if same := [dataset for dataset in trained if dataset.get("manifest_sha256") == digest]:
        if split == LATEST:  # seen unless every training held out the same games
            return (
                "yes"
                if {dataset.get("held_out") for dataset in same} != {measured.held_out}
                else "no"
            )
        return "yes" if split == "train" else "no"
    sources = {source.get("sha256") for dataset in trained for source in dataset.get("sources", [])}
    # Other settings of the same dump move games between the splits; another dump may hold the same
    # games.
    return (
        "unknown"
        if sources & {source["sha256"] for source in measured.page["sources"]} or not trained
        else "no, another dump"
    )


def _measure_common_rule(table: "pl.DataFrame", rule: Rule, where: str) -> dict[str, Any]:
    """Return the headline figures under the usual rule of the literature."""
    import polars as pl

    from pipeline.evaluation.figures import headline

    kept = table.filter((pl.col("ply") >= COMMON_PLY) & (pl.col("clock") >= COMMON_CLOCK))
    return {
        "rule": rule.describe(where, common=True),
        **(headline(kept) if len(kept) else {"positions": 0}),
    }


def _measure_matrix(
    network: "NetworkEvaluator", sample: "BandSample", how: _How, progress: Progress
) -> dict[str, Any]:
    """Return the matrix of ratings, or the reason why there is none, in words under `words`."""
    from model.data.rows import input_columns
    from pipeline.evaluation.rating_matrix import RATINGS, describe_matrix, measure_matrix

    if not set(RATINGS) <= set(input_columns(network.preset)):
        return {"words": f"skipped: {network.preset.name} is not conditioned on ratings"}
    if not how.players:
        return {"words": "skipped: the players' ratings are hidden"}
    matrix = measure_matrix(network, sample, progress)
    return matrix | {"words": describe_matrix(matrix)}


def choose_network(
    checkpoint: Path, network: "NetworkEvaluator", batches: Iterable[Batch]
) -> "tuple[NetworkEvaluator | OnnxEvaluator, str]":
    """Return the exported network if its top-1 agrees with torch's, else torch's; and why.

    With bfloat16 torch is about as fast as 8-bit integers with this check, so it is worth it only
    where torch uses float32.
    """
    from model.inference.onnx_evaluator import OnnxError, find_export
    from model.metrics import rows as measured

    try:
        exported = find_export(checkpoint, threads=cores())
    except OnnxError as error:
        return network, f"torch ({error})"
    if exported is None:
        return network, "torch"
    gained = count = 0
    for raw in batches:
        known = raw["label"] != NO_LABEL
        batch = {name: values[known] for name, values in raw.items()}
        if not known.any():
            continue
        count += len(batch["planes"])
        ranks = [
            measured(*answer, batch)["rank"]
            for answer in (f(batch["planes"], batch) for f in (network, exported))
        ]
        gained += int((ranks[1] == 1).sum()) - int((ranks[0] == 1).sum())
    if not count:
        return network, "torch (the exported network was not compared: no position has a move)"
    difference = gained / count
    if abs(difference) > TOLERANCE:
        return (
            network,
            f"torch (the exported network's top-1 differs by {difference:+.4f} on {count:,} "
            f"positions)",
        )
    arithmetic = exported.card["arithmetic"]
    return (
        exported,
        f"the exported network in {arithmetic} (top-1 {difference:+.4f} on {count:,} positions)",
    )


def _measure(
    checkpoint: Path, where: _Where, how: _How, progress: Progress
) -> tuple[dict[str, Any], "pl.DataFrame"]:
    """Return one checkpoint's report, and the rows that it was counted from."""
    import torch

    from model.checkpoint import read_card
    from model.data.rows import input_columns
    from model.inference.evaluator import NetworkEvaluator, evaluator
    from model.inference.onnx_evaluator import find_export
    from model.network.encoder import STEPS
    from model.training.metrics_log import read_metrics
    from pipeline.evaluation.figures import (
        IN_TRAIN,
        add_strata,
        describe_accuracy,
        headline,
        page_details,
        slices,
    )
    from pipeline.evaluation.game_texts import add_game_tags

    card = read_card(checkpoint)
    network = evaluator(checkpoint)
    read = input_columns(network.preset)
    names = [*COLUMNS, *read]
    sample: BandSample | None = None
    searched: SearchedRows | None = None
    if how.rating_rows:
        from pipeline.evaluation import rating_matrix

        sample = rating_matrix.BandSample(how.rating_rows)
    if how.simulations:
        from pipeline.evaluation import human_search

        names += human_search.COLUMNS
        searching = find_export(checkpoint) or network
        searched = human_search.SearchedRows(searching, how.simulations)
    columns = tuple(dict.fromkeys(names))
    batches = Batches([where.dataset], where.split, batch_size=BATCH, columns=columns)
    rows = min(how.rule.limit, batches.rows) if how.rule.limit else batches.rows
    stream = batches.sample(rows) if rows < batches.rows else batches.read_rows()
    fastest: NetworkEvaluator | OnnxEvaluator = network
    evaluated_by = "torch"
    if (
        how.fast
        and rows > 2 * CHECKED
        and (network.device.type, network.dtype) == ("cpu", torch.float32)
    ):
        fastest, evaluated_by = choose_network(checkpoint, network, batches.sample(CHECKED))
    factor = (card.get("calibration") or {}).get("factor")
    table, boards = measure_rows(
        stream, fastest, how.rule, rows, how.players, sample, progress, factor, searched
    )
    table = add_strata(table)
    cut = slices(table, where.look_up(table["key"].to_numpy(), progress))
    top1 = {row["band"]: row["top1"] for row in cut.get("in train", [])}
    both = {"top1_not_in_train": top1.get(IN_TRAIN[0]), "top1_in_train": top1.get(IN_TRAIN[1])}
    matrix = _measure_matrix(network, sample, how, progress) if sample else {}
    rule = how.rule if rows < batches.rows else replace(how.rule, limit=0)
    figures, seen = headline(table), _seen(card, where.dataset, where.split)
    sources = [source["name"] for part in where.dataset.parts for source in part.page["sources"]]
    by_people = SAMPLE.name not in sources and bool((table["elo"] != BATCH_SENTINELS["elo"]).any())
    published = PUBLISHED if by_people else None  # self-play has no ratings
    result = {
        **describe_accuracy(figures, where.words, seen, published),
        **figures,
        "common_rule": _measure_common_rule(table, rule, where.words),
        **(both if where.train else {}),
        "rule": rule.describe(where.words),
        "evaluated_by": evaluated_by,
        "reads": [name for name in read if name in STEPS] if how.players else [],
        **({"rating_matrix": matrix["words"]} if matrix else {}),
        **(
            {"human_search": {"simulations": how.simulations, "rows": searched.compare_by_rating()}}
            if searched
            else {}
        ),
        "seen_in_training": seen,
        "published": published,
        "preset": card["preset"]["name"],
        "step": card["step"],
        "trained_on_positions": count_positions(card),
        "trained_on": list(
            dict.fromkeys(dataset["name"] for dataset in list_datasets(card["data"]))
        ),
        "slices": cut,
        "details": {
            **page_details(table),
            **({"rating_matrix": matrix} if "rows" in matrix else {}),
            "boards": add_game_tags(boards.rows(), where.dataset.parts[0], where.dumps),
            "training": [
                {name: entry.get(name) for name in CURVES} for entry in read_metrics(checkpoint)
            ],
        },
    }
    return result, table
