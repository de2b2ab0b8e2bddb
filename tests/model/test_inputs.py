"""What the network is shown, against the engine's own unpacking."""

import numpy as np
import pytest
import torch

from engine.encoding import legal_mask, unpack
from engine.views import apply, apply_labels, view
from model.inputs import bytes_of, inputs, logits_from_view
from tests.model.synthetic import batch, bits

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["marro77", "chessmarro77"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planes_mask_and_labels_equal_the_engines(name: str, dtype: torch.dtype) -> None:
    rows, shown = batch(32), view(name)
    data = inputs(rows, shown, CPU, dtype)
    planes = apply(shown, rows["planes"])
    black = rows["planes"][:, 12] != 0
    assert data.planes.dtype == dtype
    assert data.planes.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(data.planes.float().numpy(), unpack(planes))
    assert np.array_equal(data.legal.numpy(), legal_mask(planes))
    assert np.array_equal(data.labels.numpy(), apply_labels(shown, black, rows["label"]))
    assert data.legal[torch.arange(32), data.labels].all()


def test_a_bit_lands_on_its_square() -> None:
    planes = np.zeros((1, 77), np.uint64)
    planes[0, 0] = bits(0, 15, 63)
    planes[0, 13 + 5] = bits(10)
    data = inputs(
        {"planes": planes, "label": np.array([330], np.uint16), "result": np.array([1], np.int8)},
        view("marro77"),
        CPU,
        torch.float32,
    )
    assert data.planes[0, 0].nonzero().tolist() == [[0, 0], [1, 7], [7, 7]]
    assert data.legal[0].nonzero().tolist() == [[5 * 64 + 10]]


def test_logits_come_back_to_the_movers_labels() -> None:
    rows, shown = batch(16), view("chessmarro77")
    data = inputs(rows, shown, CPU, torch.float32)
    black = torch.from_numpy(rows["planes"][:, 12] != 0)
    back = logits_from_view(shown, black, torch.nn.functional.one_hot(data.labels, 4096).float())
    assert np.array_equal(back.argmax(1).numpy(), rows["label"])


def test_read_only_rows_are_taken() -> None:
    planes = batch(2)["planes"]
    planes.setflags(write=False)
    assert bytes_of(planes).shape == (2, 77, 8)
