"""What tests of networks and their training share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_pictures() -> Iterator[None]:
    """Leave curves.png out, which takes longer than most of these runs; `test_the_card_explains_the_checkpoint` has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model.training.loop.draw", lambda out: None)
        yield
