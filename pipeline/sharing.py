"""Publish checkpoints and datasets on the Hugging Face hub, and download them.

    push: files that the card or manifest lists + README.md (a model or data card) -> one commit
    pull: the same files -> OUT.pulling -> checked -> renamed to OUT

`HF_ENDPOINT` names another server, and `hf auth login` or `HF_TOKEN` gives access.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from engine.json_files import read_json
from model.card import CARD_FILE, ONNX_FILE
from pipeline.dataset.dataset import Dataset, is_training_set
from pipeline.dataset.files.columns import MANIFEST
from pipeline.errors import ConfigError, FetchError
from pipeline.storage.tables import format_text_table

README_FILE, DATA_CARD_FILE = "README.md", "CARD.md"
DATASET_PREFIX = "datasets/"
"""Prefix of a dataset's name in `repo`, as in the hub's URLs."""
PULLED_FILES = {
    "model": re.compile(
        rf"{CARD_FILE}|{ONNX_FILE}|{README_FILE}|weights-[\w-]+\.safetensors", re.ASCII
    ),
    "dataset": re.compile(rf"{MANIFEST}|{DATA_CARD_FILE}|{README_FILE}|[\w.-]+\.parquet", re.ASCII),
}
"""Names of files to download, by the kind of repository. They contain no path, so nothing is
written outside the folder."""
MAX_REPORT_BYTES = 64 << 20
"""Maximum size of a report.json that is read for a card."""


def push(
    folder: Path, repo: str, license: str, *, public: bool = False, report: Path | None = None
) -> dict[str, Any]:
    """Publish a checkpoint or dataset in one commit; return its URL, files, kind and repository.

    A new repository is private unless `public`. A checkpoint's card quotes `report`, by default
    FOLDER/report. Raises ConfigError, CheckpointError, OnnxError or DatasetError for files that
    cannot be published, FetchError for the hub.
    """
    hub, kind = _import_hub(), _detect_kind(folder)
    name = repo.removeprefix(DATASET_PREFIX)
    report = report or folder / "report"
    if kind == "dataset":
        dataset = Dataset.open(folder)
        files = [MANIFEST, DATA_CARD_FILE, *(entry["name"] for entry in dataset.manifest["files"])]
        files = [file for file in dict.fromkeys(files) if (folder / file).exists()]
        text = _format_data_card(folder, name, license)
    else:
        card = _check_checkpoint(folder)
        files = [CARD_FILE, card["files"]["weights"]["name"]]
        files += [ONNX_FILE] if "onnx" in card["files"] else []
        text = format_model_card(card, name, license, _read_report(report))
    operations = [hub.CommitOperationAdd(file, str(folder / file)) for file in files]
    operations.append(hub.CommitOperationAdd(README_FILE, text.encode()))
    files.append(README_FILE)
    with _translate_hub_errors(repo):
        api = hub.HfApi()
        api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
        commit = api.create_commit(
            name, operations, repo_type=kind, commit_message=f"Upload {folder.resolve().name}"
        )
    return {"repo": name, "kind": kind, "files": files, "url": str(commit.commit_url)}


def pull(repo: str, out: Path, *, revision: str | None = None) -> dict[str, Any]:
    """Download a checkpoint, or a dataset named datasets/OWNER/NAME; check and describe it.

    A stopped download is resumed. Raises ConfigError if `out` is not empty, FetchError for the hub,
    and CheckpointError, OnnxError or DatasetError for damaged files.
    """
    hub = _import_hub()
    kind = "dataset" if repo.startswith(DATASET_PREFIX) else "model"
    name, partial = repo.removeprefix(DATASET_PREFIX), out.with_name(f"{out.name}.pulling")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty directory: choose a new one, or delete it")
    with _translate_hub_errors(repo):
        listed = hub.HfApi().list_repo_files(name, repo_type=kind, revision=revision)
        files = [file for file in listed if PULLED_FILES[kind].fullmatch(file)]
        if not files:
            raise FetchError(f"{repo} has no files of a {kind}: check the name")
        hub.snapshot_download(
            name, repo_type=kind, revision=revision, local_dir=partial, allow_patterns=files
        )
    for path in partial.iterdir():
        if path.name not in files:  # metadata of the hub's client, or files of another repository
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "dataset":
        Dataset.open(partial)
    else:
        _check_checkpoint(partial)
    if out.exists():
        out.rmdir()
    partial.rename(out)
    return {"out": str(out), "kind": kind, "repo": name}


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(
            "huggingface_hub is not installed: pip install 'fianchetto[hf]'"
        ) from error
    return huggingface_hub


def _detect_kind(folder: Path) -> str:
    if is_training_set(folder):
        raise ConfigError(
            f"{folder} is a training set, which only lists datasets: push each dataset"
        )
    if (folder / MANIFEST).exists():
        return "dataset"
    if (folder / CARD_FILE).exists():
        return "model"
    raise ConfigError(f"{folder} is neither a checkpoint nor a dataset: it has no {CARD_FILE}")


def _check_checkpoint(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's card after checking its weights and its ONNX export, if any."""
    from model.checkpoint import load
    from model.inference.onnx_evaluator import find_export

    _, card = load(folder)
    find_export(folder)
    return card


@contextmanager
def _translate_hub_errors(repo: str) -> Iterator[None]:
    """Turn an error of the hub or of the connection into a FetchError of one line."""
    errors: Any = import_module("huggingface_hub.errors")
    try:
        yield
    except (errors.HTTPError, errors.HFValidationError, errors.LocalEntryNotFoundError) as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        hint = "check the name, and log in with `hf auth login` if the repository is private"
        raise FetchError(f"{repo}: the hub answered: {text}; {hint}") from error


def _read_report(report: Path) -> str:
    """Return the headline of a report, with its figures; "" if there is no report."""
    path = report / "report.json"
    if not path.exists():
        return ""
    content = read_json(path, ConfigError, max_bytes=MAX_REPORT_BYTES)
    try:
        if "chosen" in content:  # the report of an imitation
            from pipeline.imitation.page import format_imitation

            return format_imitation(content)
        return f"{content['headline']} {content['compared']}"
    except (KeyError, TypeError, StopIteration) as error:
        raise ConfigError(
            f"{path} is not a report of this version: run `fianchetto report` again"
        ) from error


def format_model_card(card: Mapping[str, Any], repo: str, license: str, measured: str) -> str:
    """Return a model card: license, network, data, measured figures, and how to load it."""
    from pipeline.training.train import count_positions, list_datasets

    names = ", ".join(dict.fromkeys(entry["name"] for entry in list_datasets(card["data"])))
    player = card["data"].get("player")
    imitates = f" It imitates {' or '.join(player['names'])}." if player else ""
    metrics = card["metrics"]
    if not measured and "validation_top1" in metrics:
        measured = (
            f"It finds {100 * metrics['validation_top1']:.1f} % of the moves in "
            f"{metrics['validation_positions']:,.0f} validation positions, which were used to "
            "choose its settings."
        )
    network = format_text_table(
        [
            {
                "preset": card["preset"]["name"],
                "parameters": f"{card['parameters']:,}",
                "positions trained on": f"{count_positions(dict(card)):,}",
            }
        ]
    )
    return f"""---
license: {json.dumps(license)}
library_name: fianchetto
tags: [chess]
---

# {repo.rpartition("/")[2]}

A policy-value network for chess, trained with Fianchetto.{imitates}

```text
{network}
```

## Data

Datasets, including those of the checkpoints that it started from: {names or "not recorded"}.
`{CARD_FILE}` has their hashes, sources and all settings.

## Measured

{measured or "Nothing was measured. `fianchetto report` measures it on your games."}

## Use

```sh
pip install 'fianchetto[hf]'
fianchetto pull {repo} --out network
fianchetto play --checkpoint network
```

The files are weights and JSON; loading them runs no code.
"""


def _format_data_card(folder: Path, repo: str, license: str) -> str:
    """Return a dataset's card, or its name, with the hub's header and the download command."""
    path = folder / DATA_CARD_FILE
    card = path.read_text(encoding="utf-8") if path.exists() else f"# {folder.resolve().name}\n"
    use = f"fianchetto pull {DATASET_PREFIX}{repo} --out games"
    header = f"---\nlicense: {json.dumps(license)}\ntags: [chess]\n---\n\n"
    return f"{header}{card.rstrip()}\n\n## Use\n\n```sh\n{use}\n```\n"
