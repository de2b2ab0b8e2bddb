"""Measure how often a checkpoint's first choice is the human move, in unseen games.

Every figure is a mean over the counted positions. Intervals treat a game as the sampling unit,
since the positions of a game are correlated. The baselines are measured on the same rows.
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
from pipeline.evaluation.charts import CURVES
from pipeline.evaluation.game_texts import Boards, add_game_tags
from pipeline.evaluation.measure import (
    BATCH,
    CHOICE,
    COLUMNS,
    COMMON_CLOCK,
    COMMON_PLY,
    COMPARED_SECTIONS,
    SECTIONS,
    Section,
    board_row,
    choose_rows,
    measure_rows,
    take_rows,
)
from pipeline.evaluation.measure import PositionFilter as PositionFilter
from pipeline.samples.shipped import EMBEDDED, SAMPLE_DUMP
from pipeline.training.train import describe_trainings, list_datasets

if TYPE_CHECKING:
    import polars as pl


PUBLISHED_RESULT = ("Maia-2", 0.533)
"""A network and its published top-1 on the authors' own human games (docs/benchmarks.md)."""


TEMPORARY = "fianchetto-report-"
"""Prefix of the temporary folder of a PGN file's positions."""


class _Source(NamedTuple):
    """The rows to measure on."""

    dataset: Dataset
    split: str
    words: str
    """Description of the rows in the report."""
    train: list[Shard]
    """Train shards, to check which measured positions also occur in training."""
    dumps: Sequence[str]
    """Dumps of a single dataset, for links to games; empty if they are missing."""
    rule: PositionFilter

    def read(self, columns: Iterable[str] = COLUMNS) -> Iterator[Batch]:
        """Yield the split's rows in batches, or a sample of them if the rule has a limit."""
        names = tuple(dict.fromkeys(columns))
        batches = Batches([self.dataset], self.split, batch_size=BATCH, columns=names)
        return batches.sample(self.rule.limit) if self.rule.limit else batches.read_rows()

    def read_boards(self, table: "pl.DataFrame", sections: Mapping[str, Section]) -> Boards:
        """Return the boards of each section as JSON; `table` has the measured rows."""
        chosen = {name: choose_rows(table, section) for name, section in sections.items()}
        numbers = [number for rows in chosen.values() for number in rows]
        batch = take_rows(self.read(), self.rule, numbers)
        figures = (table.row(number, named=True) for number in numbers)
        rows = (board_row(batch, at, row) for at, row in enumerate(figures))
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
    """Open a dataset's split, or ingest a PGN file into a temporary folder; yield the rows."""
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    with ExitStack() as stack:
        if positions is not None:
            opened = Dataset.open(positions, progress)
            words = f"the {split} split of {opened.name}"
            only, *more = opened.parts
            dumps = None if more else find_dumps(only.path, only.manifest)
            trained: Sequence[Path | Dataset] = against or [opened] * (split != "train")
        else:
            assert pgn is not None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=TEMPORARY)))
            with suppress(DamagedError):  # measure the games before the damage
                ingest([str(pgn)], folder, IngestConfig(test_share=0.0, val_share=0.0), workers=1)
            opened, split, dumps, trained = Dataset.open(folder), "train", [str(pgn)], against
            words = f"all games of {pgn.name}"
            if damage := opened.manifest["sources"][0]["damage"]:
                words += f", up to the damage of the archive ({damage})"
        train = [shard for one in trained for shard in Dataset.open(one).list_shards("train")]
        if rule.limit >= opened.count_rows(split):
            rule = replace(rule, limit=0)
        yield _Source(opened, split, words, train, dumps or [], rule)


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
    rule: PositionFilter | None = None,
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
    import polars as pl

    from model.checkpoint import read_card
    from pipeline.evaluation.figures import describe, paired_difference

    if (positions is None) == (pgn is None):
        raise ConfigError("give either a dataset (positions) or a PGN file to measure on")
    paths = dict.fromkeys(path.resolve() for path in checkpoints)
    checkpoints = sorted(paths, key=lambda path: path != EMBEDDED)
    for path in checkpoints:  # fail before ingest, which takes minutes
        read_card(path)
    names = _display_names(checkpoints)
    with _open_source(positions, split, pgn, against, rule or PositionFilter(), progress) as source:
        measured = [
            _measure(path, source, players, rating_rows, simulations, progress)
            for path in checkpoints
        ]
        (first, _), (last, _) = measured[0], measured[-1]
        if source.train:
            in_train = find_keys(first["key"].to_numpy(), source.train, progress)
            measured = [(table.with_columns(in_train=in_train), known) for table, known in measured]
        found = [
            _describe(name, source, table, known)
            for name, (table, known) in zip(names, measured, strict=True)
        ]
        differences = [
            {"name": name, "against": names[0], **paired_difference(first, table)}
            for name, (table, _) in list(zip(names, measured, strict=True))[1:]
        ]
        sentences = {name: found[-1][name] for name in ("headline", "compared")}
        boards: Boards = {}
        if differences:
            sentences = describe(found[-1], found[0], differences[-1])
            reference = first.select(pl.col(CHOICE).name.prefix("reference_"))
            boards = source.read_boards(last.hstack(reference), COMPARED_SECTIONS)
    return {
        **sentences,
        "names": names,
        "reports": found,
        "differences": differences,
        "boards": boards,
    }


def _display_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that no other has; the embedded network has a name."""
    names = []
    for path in paths:
        depth = 1
        while sum(one.parts[-depth:] == path.parts[-depth:] for one in paths) > 1:
            depth += 1
        end = "/".join(path.parts[-depth:])
        names.append("the embedded network" if path == EMBEDDED else end)
    return names


def _seen_in_training(card: dict[str, Any], dataset: Dataset, split: str) -> str:
    """Return whether the network was trained on these games, from the hashes in its card."""
    parts = [part for part in dataset.parts if part.has_rows(split)]
    answers = {_dataset_seen_in_training(card, part, split) for part in parts}
    return next((word for word in ("yes", "unknown", "no") if word in answers), "no, another dump")


def _dataset_seen_in_training(card: dict[str, Any], measured: Dataset, split: str) -> str:
    """Return `_seen_in_training` for one member dataset."""
    trained = list_datasets(card["data"])
    same = [one for one in trained if one.get("manifest_sha256") == measured.identity]
    if same and split == LATEST:  # seen, unless every training run held out the same games
        return "no" if {one.get("held_out") for one in same} == {measured.held_out} else "yes"
    if same:
        # the final fit of an imitation (`merge_splits`) trains on the rows of all splits
        merged = any(one.get("positions", {}).get(split) == 0 for one in same)
        return "yes" if split == "train" or merged else "no"
    # With other settings, games of the same dump may be in other splits. Another dump may have the
    # same games.
    dumps = {source.get("sha256") for one in trained for source in one.get("sources", [])}
    known = dumps & {source["sha256"] for source in measured.manifest["sources"]}
    return "unknown" if known or not trained else "no, another dump"


def _measure(
    checkpoint: Path,
    source: _Source,
    players: bool,
    rating_rows: int,
    simulations: int,
    progress: Progress,
) -> tuple["pl.DataFrame", dict[str, Any]]:
    """Evaluate the counted rows with one checkpoint.

    Returns the table of rows, and the entries of the report that are not computed from it.
    """
    from model.checkpoint import read_card
    from model.data.rows import input_columns
    from model.inference.evaluator import evaluator
    from model.inference.onnx_evaluator import find_export
    from model.network.encoder import CONDITION_STEPS
    from model.training.monitor import read_metrics
    from pipeline.evaluation.figures import add_strata
    from pipeline.evaluation.human_search import compare_by_rating, search_columns
    from pipeline.evaluation.rating_matrix import (
        RATINGS,
        choose_by_band,
        describe_matrix,
        measure_matrix,
    )

    card, network = read_card(checkpoint), evaluator(checkpoint)
    reads = input_columns(network.preset)
    search = None
    if simulations:
        search = partial(search_columns, find_export(checkpoint) or network, simulations)
    table = measure_rows(
        source.read((*COLUMNS, *reads)),
        network,
        source.rule,
        source.rule.limit or source.dataset.count_rows(source.split),
        progress,
        players=players,
        factor=(card.get("calibration") or {}).get("factor"),
        search=search,
    )
    table = add_strata(table)
    known: dict[str, Any] = {
        "reads": [name for name in reads if name in CONDITION_STEPS] if players else [],
        "seen_in_training": _seen_in_training(card, source.dataset, source.split),
        "preset": card["preset"]["name"],
        "step": card["step"],
        "trainings": describe_trainings(card),
        "trained_on": list(dict.fromkeys(one["name"] for one in list_datasets(card["data"]))),
        "details": {
            "boards": source.read_boards(table, SECTIONS),
            "training": [
                {curve: entry.get(curve) for curve in CURVES} for entry in read_metrics(checkpoint)
            ],
        },
    }
    if rating_rows and not set(RATINGS) <= set(reads):
        known["rating_matrix"] = f"skipped: {network.preset.name} is not conditioned on ratings"
    elif rating_rows and not players:
        known["rating_matrix"] = "skipped: the players' ratings are hidden"
    elif rating_rows:
        chosen = choose_by_band(table, rating_rows)
        rows = take_rows(source.read((*COLUMNS, *reads)), source.rule, chosen)
        matrix = measure_matrix(network, rows, table["game"][chosen].to_numpy(), progress)
        known["rating_matrix"] = describe_matrix(matrix["rows"])
        if matrix["rows"]:
            known["details"]["rating_matrix"] = matrix
    if simulations:
        known["human_search"] = {"simulations": simulations, "rows": compare_by_rating(table)}
    return table, known


def _describe(
    name: str, source: _Source, table: "pl.DataFrame", known: dict[str, Any]
) -> dict[str, Any]:
    """Return the report of one checkpoint, from the results of `_measure`."""
    import polars as pl

    from pipeline.evaluation.figures import IN_TRAIN, describe, headline, page_details, slices

    parts, is_common = source.dataset.parts, pl.col("ply") >= COMMON_PLY
    sources = [one["name"] for part in parts for one in part.manifest["sources"]]
    rated = bool((table["elo"] != BATCH_SENTINELS["elo"]).any())
    is_human = SAMPLE_DUMP.name not in sources and rated  # self-play has no ratings
    common = table.filter(is_common & (pl.col("clock") >= COMMON_CLOCK))
    result: dict[str, Any] = {
        "name": name,
        "measured_on": source.words,
        **headline(table),
        "common_rule": {
            "rule": source.rule.describe(source.words, common=True),
            **(headline(common) if len(common) else {"positions": 0}),
        },
        "rule": source.rule.describe(source.words),
        "published": PUBLISHED_RESULT if is_human else None,
        "slices": slices(table),
        **known,
        "details": {**page_details(table), **known["details"]},
    }
    if "in train" in result["slices"]:
        top1 = {row["band"]: row["top1"] for row in result["slices"]["in train"]}
        result["top1_not_in_train"], result["top1_in_train"] = map(top1.get, IN_TRAIN)
    return describe(result) | result
