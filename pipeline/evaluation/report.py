"""Measure how often a checkpoint's first choice is the human move, on a dataset or a PGN file.

Every figure is a mean over the counted positions. Intervals treat a game as the sampling unit,
since the positions of a game are correlated. The baselines are measured on the same positions.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.progress import Progress, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import LATEST, Dataset, Shard
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.position_keys import find_keys
from pipeline.dumps.source import find_dumps
from pipeline.errors import ConfigError, DamagedError
from pipeline.evaluation.charts import CURVE_METRICS
from pipeline.evaluation.game_texts import Boards, add_game_tags
from pipeline.evaluation.measure import (
    BATCH_ROWS,
    BOARD_SECTIONS,
    CHOICE_COLUMNS,
    COMMON_MIN_CLOCK,
    COMMON_MIN_PLY,
    COMPARISON_SECTIONS,
    MEASURED_COLUMNS,
    BoardSection,
    choose_rows,
    describe_position,
    measure_rows,
    take_rows,
)
from pipeline.evaluation.measure import PositionFilter as PositionFilter
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT, SAMPLE_DUMP
from pipeline.training.train import describe_trainings, list_datasets

if TYPE_CHECKING:
    import polars as pl


PUBLISHED_RESULT = ("Maia-2", 0.533)
"""A network and its published top-1 on the authors' own human games (docs/benchmarks.md)."""
SPLIT_NAMES = {
    "train": "the train split",
    "val": "the validation split",
    "test": "the test split",
    LATEST: "the newest games",
}
"""Names of the splits in a report."""
TEMPORARY_PREFIX = "fianchetto-report-"
"""Prefix of the temporary folder into which a PGN file is ingested."""


class _Source(NamedTuple):
    """The rows to measure on."""

    dataset: Dataset
    split: str
    games: str
    """Name of the measured games in the report."""
    train: list[Shard]
    """Shards of train splits, to find the measured positions that also occur in training."""
    dumps: Sequence[str]
    """Dumps of a single dataset, for links to games; empty if they are missing."""
    rule: PositionFilter

    def read(self, columns: Iterable[str] = ()) -> Iterator[Batch]:
        """Yield MEASURED_COLUMNS and more columns of the split, sampled if the rule has a limit."""
        names = tuple(dict.fromkeys((*MEASURED_COLUMNS, *columns)))
        batches = Batches([self.dataset], self.split, batch_size=BATCH_ROWS, columns=names)
        return batches.sample(self.rule.limit) if self.rule.limit else batches.read_rows()

    def read_boards(self, table: "pl.DataFrame", sections: Mapping[str, BoardSection]) -> Boards:
        """Return the boards of each section as JSON, chosen from a table of all measured rows."""
        chosen = {name: choose_rows(table, section) for name, section in sections.items()}
        numbers = [number for rows in chosen.values() for number in rows]
        batch = take_rows(self.read(), self.rule, numbers)
        figures = (table.row(number, named=True) for number in numbers)
        rows = (describe_position(batch, at, row) for at, row in enumerate(figures))
        boards = {name: list(islice(rows, len(found))) for name, found in chosen.items()}
        return add_game_tags(boards, self.dataset.parts[0], self.dumps)


@contextmanager
def _open_source(
    positions: Path | None,
    split: str,
    pgn: Path | None,
    against: Sequence[Path],
    rule: PositionFilter,
    progress: Progress,
) -> Iterator[_Source]:
    """Open a split of a dataset, or a PGN file, which is ingested into a temporary folder."""
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    with ExitStack() as stack:
        if positions is not None:
            opened = Dataset.open(positions, progress)
            games = f"{SPLIT_NAMES[split]} of {opened.name}"
            only, *more = opened.parts
            dumps = None if more else find_dumps(only.path, only.manifest)
            trained: Sequence[Path | Dataset] = against or [opened] * (split != "train")
        else:
            assert pgn is not None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX)))
            with suppress(DamagedError):  # measure on the games before the damage
                ingest([str(pgn)], folder, IngestConfig(test_share=0.0, val_share=0.0), workers=1)
            opened, split, dumps, trained = Dataset.open(folder), "train", [str(pgn)], against
            games = f"all games of {pgn.name}"
            if damage := opened.manifest["sources"][0]["damage"]:
                games += f", up to the damage of the archive ({damage})"
        train = [
            shard for dataset in trained for shard in Dataset.open(dataset).list_shards("train")
        ]
        if rule.limit >= opened.count_rows(split):
            rule = replace(rule, limit=0)
        yield _Source(opened, split, games, train, dumps or [], rule)


def report(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """Measure one checkpoint, with the options of `reports`, and return its report.

    headline compared           the result in sentences
    measured_on rule            the games, and the positions that are counted
    positions games             their numbers
    top1 top3 cross_entropy ... means over the positions (model/metrics.py)
    top1_low top1_high          95 % interval of top-1, None with too few games
    hand_written_* chance_* ... baselines on the same positions
    common_rule                 the same figures, by the usual rule of published results
    slices                      figures by rating, phase and so on (figures.summarize_slices)
    top1_in_train ...           top-1 on positions that also occur in the train split, or do not
    seen_in_training            whether the network was trained on the games
    rating_matrix human_search  results of the options `rating_rows` and `simulations`
    details                     boards and figures that only the page shows
    """
    return dict(reports([checkpoint], **options)["reports"][0])


def reports(
    checkpoints: Sequence[Path],
    *,
    positions: Path | None = None,
    split: str = "test",
    pgn: Path | None = None,
    against: Sequence[Path] = (),
    rule: PositionFilter | None = None,
    players: bool = True,
    rating_rows: int = 0,
    simulations: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure checkpoints on the same positions, and compare them with the first one.

    Returns `names`, `reports` (see `report`) and `differences` from the first, paired by position.
    The embedded network is moved to the front, so that others are compared with it. `headline` and
    `compared` describe the last network, beside the first if there are several; `boards` are
    positions on which these two differ.

    `against` are datasets whose train splits are searched for the measured positions, by default
    `positions` unless `split` is train. Without `players`, networks get no ratings and no clocks.
    `rating_rows` is the number of positions per rating band to evaluate under each rating. With
    `simulations`, every counted position is searched, to compare the corrected policy with the
    policy alone.

    Raises ConfigError, and the errors of reading a checkpoint, a dataset or a PGN file.
    """
    import polars as pl

    from model.checkpoint import read_card
    from pipeline.evaluation.figures import describe_result, paired_difference

    if (positions is None) == (pgn is None):
        raise ConfigError("give either a dataset (positions) or a PGN file to measure on")
    paths = dict.fromkeys(path.resolve() for path in checkpoints)
    checkpoints = sorted(paths, key=lambda path: path != EMBEDDED_CHECKPOINT)
    for path in checkpoints:  # fail before a PGN file is ingested, which takes minutes
        read_card(path)
    names = _shorten_names(checkpoints)
    with _open_source(positions, split, pgn, against, rule or PositionFilter(), progress) as source:
        measured = [
            _measure(path, source, players, rating_rows, simulations, progress)
            for path in checkpoints
        ]
        (first, _), (last, _) = measured[0], measured[-1]
        if source.train:
            in_train = find_keys(first["key"].to_numpy(), source.train, progress)
            measured = [(table.with_columns(in_train=in_train), more) for table, more in measured]
        results = [
            _make_report(name, source, table, more)
            for name, (table, more) in zip(names, measured, strict=True)
        ]
        differences = [
            {"name": name, "against": names[0], **paired_difference(first, table)}
            for name, (table, _) in list(zip(names, measured, strict=True))[1:]
        ]
        sentences = {name: results[-1][name] for name in ("headline", "compared")}
        boards: Boards = {}
        if differences:
            sentences = describe_result(results[-1], results[0], differences[-1])
            reference = first.select(pl.col(CHOICE_COLUMNS).name.prefix("reference_"))
            boards = source.read_boards(last.hstack(reference), COMPARISON_SECTIONS)
    return {
        **sentences,
        "names": names,
        "reports": results,
        "differences": differences,
        "boards": boards,
    }


def _shorten_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that no other path has, or "the embedded network"."""
    names = []
    for path in paths:
        depth = 1
        while sum(other.parts[-depth:] == path.parts[-depth:] for other in paths) > 1:
            depth += 1
        end = "/".join(path.parts[-depth:])
        names.append("the embedded network" if path == EMBEDDED_CHECKPOINT else end)
    return names


def find_overlap(card: dict[str, Any], dataset: Dataset, split: str) -> str:
    """Describe whether a network was trained on a split, according to the hashes in its card.

    The answer is "yes", "no", "unknown" or "no, another dump".
    """
    parts = [part for part in dataset.parts if part.has_rows(split)]
    answers = {_find_dataset_overlap(card, part, split) for part in parts}
    return next((word for word in ("yes", "unknown", "no") if word in answers), "no, another dump")


def _find_dataset_overlap(card: dict[str, Any], measured: Dataset, split: str) -> str:
    """Return the answer of `find_overlap` for one dataset or one member of a training set."""
    trained = list_datasets(card["data"])
    same = [data for data in trained if data.get("manifest_sha256") == measured.identity]
    if same and split == LATEST:  # seen, unless every training run held out the same games
        return "no" if {data.get("held_out") for data in same} == {measured.held_out} else "yes"
    if same:
        # the last training of an imitation (`merge_splits`) uses the rows of all splits
        is_merged = any(data.get("positions", {}).get(split) == 0 for data in same)
        return "yes" if split == "train" or is_merged else "no"
    # An ingest with other settings may have put the same games into other splits. Another dump may
    # contain the same games.
    dumps = {source.get("sha256") for data in trained for source in data.get("sources", [])}
    shared = dumps & {source["sha256"] for source in measured.manifest["sources"]}
    return "unknown" if shared or not trained else "no, another dump"


def _measure(
    checkpoint: Path,
    source: _Source,
    players: bool,
    rating_rows: int,
    simulations: int,
    progress: Progress,
) -> tuple["pl.DataFrame", dict[str, Any]]:
    """Evaluate the counted rows with one checkpoint.

    Returns the table of rows, and the entries of the report that `_make_report` cannot compute from
    it.
    """
    from model.checkpoint import read_card
    from model.data.rows import input_columns
    from model.inference.evaluator import evaluator
    from model.inference.onnx_evaluator import find_export
    from model.network.encoder import CONDITION_STEPS
    from model.training.monitor import read_metrics
    from pipeline.evaluation import rating_matrix
    from pipeline.evaluation.figures import add_strata
    from pipeline.evaluation.human_search import compare_by_rating, measure_search

    card, network = read_card(checkpoint), evaluator(checkpoint)
    reads = input_columns(network.preset)
    search = None
    if simulations:
        search = partial(measure_search, find_export(checkpoint) or network, simulations)
    table = measure_rows(
        source.read(reads),
        network,
        source.rule,
        source.rule.limit or source.dataset.count_rows(source.split),
        progress,
        players=players,
        factor=(card.get("calibration") or {}).get("factor"),
        search=search,
    )
    table = add_strata(table)
    more: dict[str, Any] = {
        "reads": [name for name in reads if name in CONDITION_STEPS] if players else [],
        "seen_in_training": find_overlap(card, source.dataset, source.split),
        "preset": card["preset"]["name"],
        "step": card["step"],
        "trainings": describe_trainings(card),
        "trained_on": list(dict.fromkeys(data["name"] for data in list_datasets(card["data"]))),
        "details": {
            "boards": source.read_boards(table, BOARD_SECTIONS),
            "training": [
                {name: entry.get(name) for name in CURVE_METRICS}
                for entry in read_metrics(checkpoint)
            ],
        },
    }
    if rating_rows and not set(rating_matrix.RATING_COLUMNS) <= set(reads):
        more["rating_matrix"] = f"skipped: {network.preset.name} is not conditioned on ratings"
    elif rating_rows and not players:
        more["rating_matrix"] = "skipped: the players' ratings are hidden"
    elif rating_rows:
        chosen = rating_matrix.choose_by_band(table, rating_rows)
        rows, game_R = take_rows(source.read(reads), source.rule, chosen), table["game"][chosen]
        matrix = rating_matrix.measure_matrix(network, rows, game_R.to_numpy(), progress)
        more["rating_matrix"] = rating_matrix.describe_matrix(matrix["rows"])
        if matrix["rows"]:
            more["details"]["rating_matrix"] = matrix
    if simulations:
        more["human_search"] = {"simulations": simulations, "rows": compare_by_rating(table)}
    return table, more


def _make_report(
    name: str, source: _Source, table: "pl.DataFrame", more: dict[str, Any]
) -> dict[str, Any]:
    """Return the report of one checkpoint, from the results of `_measure`."""
    import polars as pl

    from pipeline.evaluation import figures

    dumps = [entry["name"] for part in source.dataset.parts for entry in part.manifest["sources"]]
    is_rated = bool((table["elo"] != BATCH_SENTINELS["elo"]).any())
    is_human = SAMPLE_DUMP.name not in dumps and is_rated  # games of self-play have no ratings
    is_common = (pl.col("ply") >= COMMON_MIN_PLY) & (pl.col("clock") >= COMMON_MIN_CLOCK)
    common = table.filter(is_common)
    result: dict[str, Any] = {
        "name": name,
        "measured_on": source.games,
        **figures.summarize_positions(table),
        "common_rule": {
            "rule": source.rule.describe(source.games, common=True),
            **(figures.summarize_positions(common) if len(common) else {"positions": 0}),
        },
        "rule": source.rule.describe(source.games),
        "published": PUBLISHED_RESULT if is_human else None,
        "slices": figures.summarize_slices(table),
        **more,
        "details": {**figures.compute_details(table), **more["details"]},
    }
    if "in train" in result["slices"]:
        top1 = {row["band"]: row["top1"] for row in result["slices"]["in train"]}
        not_in_train, in_train = map(top1.get, figures.IN_TRAIN_NAMES)
        result |= {"top1_not_in_train": not_in_train, "top1_in_train": in_train}
    return figures.describe_result(result) | result
