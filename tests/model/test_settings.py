"""Settings: types and bounds are checked, whether the values come from Python or from text."""

from dataclasses import field, replace

import pytest

from engine.errors import UserError
from model.settings import Positive, Share, settings, validate


class MatchSettingsError(UserError):
    """A wrong setting."""


@settings(MatchSettingsError)
class Inner:
    """Nested settings."""

    games: Positive = 2
    share: Share = 0.5
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.games % 2:
            raise MatchSettingsError("games come in pairs")


@settings(MatchSettingsError)
class Outer:
    """Settings with nested ones."""

    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"games": 0}, "games must be at least 1, got 0"),
        ({"games": 3}, "pairs"),
        ({"games": True}, "games must be a valid integer"),
        ({"share": float("inf")}, "share must be a finite number"),
        ({"names": "me"}, "names must be a valid tuple"),
        ({"game": 2}, "game: unexpected"),
    ],
)
def test_errors_name_the_setting_and_its_allowed_values(
    values: dict[str, object], words: str
) -> None:
    with pytest.raises(MatchSettingsError, match=words):
        Inner(**values)  # type: ignore[arg-type]


def test_strings_are_converted() -> None:
    texts = {"inner": {"games": "4", "share": "1", "names": ["a"]}}
    assert validate(Outer, texts) == Outer(inner=Inner(games=4, share=1.0, names=("a",)))
    with pytest.raises(MatchSettingsError, match="--games must be at least 1, got '0'"):
        validate(Outer, {"inner": {"games": "0"}}, MatchSettingsError, lambda key: "--games")
    with pytest.raises(MatchSettingsError, match="pairs"):
        validate(Outer, {"inner": {"games": "3"}})
    with pytest.raises(MatchSettingsError, match="pairs"):
        replace(Inner(), games=5)
