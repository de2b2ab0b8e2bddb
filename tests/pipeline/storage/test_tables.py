"""Results are formatted as aligned text."""

from pipeline.storage.tables import format_plain_text, format_text_table

FEN = "rnbqkb1r/ppppp1pp/5p1n/8/4P3/8/PPPPBPPP/RNBQK1NR w KQkq - 0 3"


def test_a_table_is_not_cut_and_numbers_are_right_aligned() -> None:
    rows = [
        {"fen": FEN, "hand_written_top1": 0.51234, "positions": 12345, "eval": None},
        {"fen": "8/8", "hand_written_top1": 1.0, "positions": 7, "eval": -30},
    ]
    assert format_text_table(rows).splitlines() == [
        f"{'fen':<{len(FEN)}}  hand written top1  positions  eval",
        f"{FEN}              0.512     12,345     -",
        f"{'8/8':<{len(FEN)}}              1.000          7   -30",
    ]
    assert format_text_table([{"a": 1}, {"b": "x"}]).splitlines() == ["a  b", "1  -", "-  x"]


def test_lists_and_booleans_are_written_as_words() -> None:
    assert format_plain_text(
        {"checked": ["files", "rows"], "left": [], "done": True}
    ).splitlines() == [
        "checked  files, rows",
        "left     -",
        "done     yes",
    ]
