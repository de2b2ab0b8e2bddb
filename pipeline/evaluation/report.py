"""Measure how often a checkpoint's first choice is the human move, in unseen games.

Every figure is a mean over the counted positions. Intervals treat a game as the sampling unit,
since the positions of a game are correlated. The baselines are measured on the same rows.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.progress import Progress, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import LATEST, Dataset, Shard
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.position_keys import find_keys
from pipeline.dumps.source import find_dumps
from pipeline.errors import ConfigError, DamagedError
from pipeline.evaluation.charts import CURVES
from pipeline.evaluation.game_texts import add_game_tags
from pipeline.evaluation.measure import (
    BATCH,
    COLUMNS,
    COMMON_CLOCK,
    COMMON_PLY,
    BoardSelection,
    compare_boards,
    measure_rows,
)
from pipeline.evaluation.measure import Rule as Rule
from pipeline.samples.shipped import EMBEDDED, SAMPLE_DUMP
from pipeline.training.train import count_positions, list_datasets

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from model.inference.evaluator import NetworkEvaluator
    from pipeline.evaluation.rating_matrix import BandSample


PUBLISHED_RESULT = ("Maia-2", 0.533)
"""A network and its published top-1 on the authors' own human games (docs/benchmarks.md)."""


class _RowSource(NamedTuple):
    """The rows to measure on."""

    dataset: Dataset
    split: str
    words: str
    """Description of the rows in the report."""
    train: list[Shard]
    """Train shards, to check which measured positions also occur in training."""
    dumps: Sequence[str]
    """Dumps of a single dataset, for links to games; empty if they are missing."""


class _Measured(NamedTuple):
    """The measurements of one checkpoint."""

    card: dict[str, Any]
    reads: tuple[str, ...]
    """Rating and clock columns that the network was given."""
    table: "pl.DataFrame"
    boards: BoardSelection
    rule: Rule
    matrix: dict[str, Any]
    searched: "list[dict[str, Any]]"
    """Rows of the human search comparison; empty if it was not requested."""


@contextmanager
def _rows_of(
    positions: Path | None,
    split: str,
    pgn: Path | None,
    against: Sequence[Path],
    progress: Progress,
) -> Iterator[_RowSource]:
    """Open a dataset's split, or ingest a PGN file into a temporary folder; yield the rows."""
    if positions is not None:
        opened = Dataset.open(positions, progress)
        train = _train_shards(against or (opened,)) if split != "train" else []
        only = opened.parts[0]
        dumps = find_dumps(only.path, only.page) if len(opened.parts) == 1 else None
        words = f"the {split} split of {opened.name}"
        yield _RowSource(opened, split, words, train, dumps or [])
        return
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    assert pgn is not None
    with tempfile.TemporaryDirectory(prefix="fianchetto-report-") as folder:
        with suppress(DamagedError):  # measure the games before the damage
            ingest([str(pgn)], Path(folder), IngestConfig(test_share=0.0, val_share=0.0), workers=1)
        opened = Dataset.open(Path(folder))
        damage = opened.page["sources"][0]["damage"]
        words = f"all games of {pgn.name}"
        if damage:
            words += f", up to the damage of the archive ({damage})"
        yield _RowSource(opened, "train", words, _train_shards(against), [str(pgn)])


def report(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """Measure one checkpoint; takes the options of `reports`, and returns one report.

    It has the network's `name`, the sentences `headline` and `compared`, the figures `positions
    top1 top3 top5 cross_entropy legal_mass value_brier` (model/metrics.py), and the interval
    `top1_low top1_high`, None with too few games. It also has the baselines, `rule` (a description
    of the counted positions), `common_rule` (the same figures under the usual rule of the
    literature) and `slices` (figures.slices).

    `top1_not_in_train` and `top1_in_train` are top-1 on positions that the train split does not and
    does have. `rating_matrix` is a sentence. `details` is shown only on the page. `human_search`
    needs `simulations`. `cross_entropy` is in nats. Values and clocks are from the mover's view.
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
    """Measure checkpoints on the same rows; return `reports`, and `differences` from the first.

    The embedded network is moved to the front, so that others are compared with it. `headline` and
    `compared` describe the last checkpoint, beside the first if there are several; `boards` are
    positions on which these two differ.

    `against` are datasets whose train splits are searched for the measured positions, by default
    `positions`. Without `players`, ratings and clocks are hidden from networks conditioned on them.
    `rating_rows` is the number of positions per rating band to evaluate under each rating. With
    `simulations`, every counted position is searched, to compare the corrected policy with the
    policy alone (`human_search`). Differences are paired by position, with intervals by games.
    """
    from model.checkpoint import read_card
    from pipeline.evaluation.figures import describe_difference, paired_difference

    if (positions is None) == (pgn is None):
        raise ConfigError("give either a dataset (positions) or a PGN file to measure on")
    for name, number in (("rating_rows", rating_rows), ("simulations", simulations)):
        if number < 0:
            raise ConfigError(f"{name} must be 0 or more, got {number}")
    checkpoints = sorted(checkpoints, key=lambda path: path.resolve() != EMBEDDED)
    for path in checkpoints:  # fail before ingest, which takes minutes
        read_card(path)
    names = _display_names(checkpoints)
    with _rows_of(positions, split, pgn, against, progress) as where:
        measured = [
            _measure(path, where, rule or Rule(), players, rating_rows, simulations, progress)
            for path in checkpoints
        ]
        first = measured[0].table
        in_train = None
        if where.train:
            in_train = find_keys(first["key"].to_numpy(), where.train, progress)
        found = [
            _describe(path, name, where, one, simulations, in_train)
            for path, name, one in zip(checkpoints, names, measured, strict=True)
        ]
        differences = [
            {"name": name, "against": names[0], **paired_difference(first, other.table)}
            for name, other in list(zip(names, measured, strict=True))[1:]
        ]
        sentences = {name: found[-1][name] for name in ("headline", "compared")}
        boards: dict[str, Any] = {}
        if differences:
            sentences = describe_difference(found[-1], found[0], differences[-1])
            rows, *_ = _open_rows(where, rule or Rule(), COLUMNS)
            boards = compare_boards(rows, measured[-1].rule, measured[-1].table, first)
            boards = add_game_tags(boards, where.dataset.parts[0], where.dumps)
    return {
        **sentences,
        "names": names,
        "reports": found,
        "differences": differences,
        "boards": boards,
    }


def _open_rows(
    where: _RowSource, rule: Rule, columns: Sequence[str]
) -> tuple[Iterator[Batch], int, Rule]:
    """Return batches of the rows to count, their number, and the rule, without a needless limit."""
    batches = Batches([where.dataset], where.split, batch_size=BATCH, columns=tuple(columns))
    rows = min(rule.limit, batches.rows) if rule.limit else batches.rows
    if rows == batches.rows:
        return batches.read_rows(), rows, replace(rule, limit=0)
    return batches.sample(rows), rows, rule


def _display_names(checkpoints: Sequence[Path]) -> list[str]:
    """Return each checkpoint's folder name, with the parent folder if the name is not unique.

    The embedded network is named as such.
    """
    plain = [path.resolve().name for path in checkpoints]
    return [
        "the embedded network"
        if path.resolve() == EMBEDDED
        else name
        if plain.count(name) == 1
        else f"{path.resolve().parent.name}/{name}"
        for name, path in zip(plain, checkpoints, strict=True)
    ]


def _train_shards(datasets: Sequence[Path | Dataset]) -> list[Shard]:
    return [shard for one in datasets for shard in Dataset.open(one).shards("train")]


def _seen_in_training(card: dict[str, Any], dataset: Dataset, split: str) -> str:
    """Return whether the network was trained on these games, from the hashes in its card."""
    parts = [part for part in dataset.parts if part.has(split)]
    answers = {_dataset_seen_in_training(card, part, split) for part in parts}
    return next((word for word in ("yes", "unknown", "no") if word in answers), "no, another dump")


def _dataset_seen_in_training(card: dict[str, Any], measured: Dataset, split: str) -> str:
    """Return `_seen_in_training` for one member dataset."""
    trained = list_datasets(card["data"])
    same = [one for one in trained if one.get("manifest_sha256") == measured.identity]
    if same and split == LATEST:  # seen, unless every training run held out the same games
        return "no" if {one.get("held_out") for one in same} == {measured.held_out} else "yes"
    if same:
        # the last fit of an imitation trains on the rows of all splits
        merged = any(one.get("positions", {}).get(split) == 0 for one in same)
        return "yes" if split == "train" or merged else "no"
    # With other settings, games of the same dump may be in other splits. Another dump may have the
    # same games.
    dumps = {source.get("sha256") for one in trained for source in one.get("sources", [])}
    known = dumps & {source["sha256"] for source in measured.page["sources"]}
    return "unknown" if known or not trained else "no, another dump"


def _measure_common_rule(table: "pl.DataFrame", rule: Rule, where: str) -> dict[str, Any]:
    """Return the headline figures under the usual rule of published results."""
    import polars as pl

    from pipeline.evaluation.figures import headline

    kept = table.filter((pl.col("ply") >= COMMON_PLY) & (pl.col("clock") >= COMMON_CLOCK))
    return {
        "rule": rule.describe(where, common=True),
        **(headline(kept) if len(kept) else {"positions": 0}),
    }


def _measure_matrix(
    network: "NetworkEvaluator", sample: "BandSample", players: bool, progress: Progress
) -> dict[str, Any]:
    """Return the rating matrix; `words` describes it, or says why there is none."""
    from model.data.rows import input_columns
    from pipeline.evaluation.rating_matrix import RATINGS, describe_matrix, measure_matrix

    if not set(RATINGS) <= set(input_columns(network.preset)):
        return {"words": f"skipped: {network.preset.name} is not conditioned on ratings"}
    if not players:
        return {"words": "skipped: the players' ratings are hidden"}
    matrix = measure_matrix(network, sample, progress)
    return matrix | {"words": describe_matrix(matrix)}


def _measure(
    checkpoint: Path,
    where: _RowSource,
    rule: Rule,
    players: bool,
    rating_rows: int,
    simulations: int,
    progress: Progress,
) -> _Measured:
    """Evaluate the counted rows with one checkpoint."""
    from model.checkpoint import read_card
    from model.data.rows import input_columns
    from model.inference.evaluator import evaluator
    from model.inference.onnx_evaluator import find_export
    from model.network.encoder import STEPS
    from pipeline.evaluation.figures import add_strata
    from pipeline.evaluation.human_search import SEARCHED_COLUMNS, SearchedRows
    from pipeline.evaluation.rating_matrix import BandSample

    card, network = read_card(checkpoint), evaluator(checkpoint)
    read = input_columns(network.preset)
    sample = BandSample(rating_rows) if rating_rows else None
    searched = None
    if simulations:
        searched = SearchedRows(find_export(checkpoint) or network, simulations)
    names = (*COLUMNS, *read, *(SEARCHED_COLUMNS if simulations else ()))
    stream, rows, rule = _open_rows(where, rule, list(dict.fromkeys(names)))
    factor = (card.get("calibration") or {}).get("factor")
    table, boards = measure_rows(
        stream, network, rule, rows, players, sample, progress, factor, searched
    )
    return _Measured(
        card=card,
        reads=tuple(name for name in read if name in STEPS) if players else (),
        table=add_strata(table),
        boards=boards,
        rule=rule,
        matrix=_measure_matrix(network, sample, players, progress) if sample else {},
        searched=searched.compare_by_rating() if searched else [],
    )


def _describe(
    checkpoint: Path,
    name: str,
    where: _RowSource,
    measured: _Measured,
    simulations: int,
    in_train: "NDArray[np.bool_] | None",
) -> dict[str, Any]:
    """Return the report of one checkpoint."""
    from model.training.monitor import read_metrics
    from pipeline.evaluation.figures import (
        IN_TRAIN,
        describe_accuracy,
        headline,
        page_details,
        slices,
    )

    card, table, rule, matrix = measured.card, measured.table, measured.rule, measured.matrix
    figures, seen = headline(table), _seen_in_training(card, where.dataset, where.split)
    sources = [source["name"] for part in where.dataset.parts for source in part.page["sources"]]
    rated = bool((table["elo"] != BATCH_SENTINELS["elo"]).any())
    is_human = SAMPLE_DUMP.name not in sources and rated  # self-play has no ratings
    result: dict[str, Any] = {
        "name": name,
        "measured_on": where.words,
        **figures,
        "common_rule": _measure_common_rule(table, rule, where.words),
        "rule": rule.describe(where.words),
        "reads": list(measured.reads),
        "seen_in_training": seen,
        "published": PUBLISHED_RESULT if is_human else None,
        "preset": card["preset"]["name"],
        "step": card["step"],
        "trained_on_positions": count_positions(card),
        "trained_on": list(dict.fromkeys(one["name"] for one in list_datasets(card["data"]))),
        "slices": slices(table, in_train),
        "details": {
            **page_details(table),
            "boards": add_game_tags(measured.boards.rows(), where.dataset.parts[0], where.dumps),
            "training": [
                {curve: entry.get(curve) for curve in CURVES} for entry in read_metrics(checkpoint)
            ],
        },
    }
    if in_train is not None:
        top1 = {row["band"]: row["top1"] for row in result["slices"]["in train"]}
        result["top1_not_in_train"], result["top1_in_train"] = map(top1.get, IN_TRAIN)
    if matrix:
        result["rating_matrix"] = matrix["words"]
    if "rows" in matrix:
        result["details"]["rating_matrix"] = matrix
    if measured.searched:
        result["human_search"] = {"simulations": simulations, "rows": measured.searched}
    return describe_accuracy(result) | result
