"""Damaged checkpoints: whatever the card and the tensor file contain, loading succeeds or ends with
an error of one line."""

import copy
import hashlib
import json
import random
import resource
import struct
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from model.card import CARD_FILE
from model.checkpoint import load, read_card
from tests.model.test_checkpoint import make

VALUES: list[Any] = [
    *(None, True, 0, -1, 1e308, 2**31, 2**62, 2**63, 7, 128, 129, 4096, 4097),
    *("", "x", "../x", "\0", "x" * 5000, "marro77", "marro13+last8+attacks", "planes18+last8"),
    *("factored", "F64", "I8", "U64", [], {}, [[]], [0] * 50),
]
MAX_GROWTH = 200 << 20
"""Bytes by which the process may grow; the network has 20 kB."""


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each part of a JSON value."""
    items: Any = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(deeper for key, item in items for deeper in list_paths(item, (*path, key)))]


def mutate(value: Any, chance: random.Random) -> Any:
    """Replace, remove or rename some parts of a JSON value."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        *keys, last = chance.choice([path for path in list_paths(value) if path])
        parent = value
        for key in keys:
            parent = parent[key]
        action = chance.randrange(4)
        if action == 0:
            del parent[last]
        elif action == 1 and isinstance(parent, dict):
            parent[chance.choice(("", "name", "x" * 300, str(last) + " "))] = parent.pop(last)
        else:
            parent[last] = copy.deepcopy(chance.choice(VALUES))
    return value


def change_bytes(text: bytes, chance: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(3)] = bytes(
            chance.choices(b'{}[]",:0159eE-.\\nu\xff\0 ', k=chance.randrange(4))
        )
    return bytes(data)


def load_error(directory: Path) -> str:
    """Return the UserError of loading a checkpoint, "" if there is none; raise other errors."""
    try:
        read_card(directory)
        load(directory)
    except UserError as error:
        return str(error)
    return ""


def damage_card(directory: Path, chance: random.Random) -> None:
    text = (directory / CARD_FILE).read_bytes()
    if chance.random() < 0.25:
        (directory / CARD_FILE).write_bytes(change_bytes(text, chance))
    else:
        (directory / CARD_FILE).write_text(json.dumps(mutate(json.loads(text), chance)))


def damage_header(directory: Path, chance: random.Random) -> None:
    """Damage the header of the tensor file, and record the file's new hash in the card."""
    path = next(directory.glob("weights-*.safetensors"))
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, tensors = data[8 : 8 + length], data[8 + length :]
    mutated = json.dumps(mutate(json.loads(header), chance)).encode()
    header = chance.choice((mutated, change_bytes(header, chance)))
    length = chance.choice((*[len(header)] * 3, 0, 1, len(data), 10**8, 2**62, 2**64 - 1))
    tensors = tensors[: chance.choice((None, None, None, 0, 5, -1))]
    damaged = struct.pack("<Q", length) + header + tensors
    path.write_bytes(damaged)
    card = json.loads((directory / CARD_FILE).read_text())
    digest = hashlib.sha256(damaged).hexdigest()
    card["files"]["weights"] |= {"bytes": len(damaged), "sha256": digest}
    (directory / CARD_FILE).write_text(json.dumps(card))


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 1500), marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("damage", [damage_card, damage_header])
def test_a_damaged_checkpoint_loads_or_is_refused_in_one_line(
    tmp_path: Path, damage: Any, seeds: range
) -> None:
    make(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    before, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for seed in seeds:
        damage(tmp_path, random.Random(seed))
        message = load_error(tmp_path)
        assert "\n" not in message, message
        assert len(message) < 1000, message
        refused += bool(message)
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        assert {path.name for path in tmp_path.iterdir()} == files.keys(), f"seed {seed}: new files"
    assert refused > len(seeds) // 3
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MAX_GROWTH


def test_a_tensor_file_with_flipped_bits_is_not_loaded(tmp_path: Path) -> None:
    make(tmp_path)
    path = next(tmp_path.glob("weights-*.safetensors"))
    data, chance = bytearray(path.read_bytes()), random.Random(0)
    for at in chance.sample(range(len(data)), 8):
        data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    assert "does not match its hash in the card" in load_error(tmp_path)
