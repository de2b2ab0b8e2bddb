"""Games that the tests of the board review."""

SHORT = """[Event "Rated Rapid game"]
[White "A <img src=x onerror=alert(1)>"]
[Black "<script>document.title='stolen'</script>"]
[Result "1-0"]
[WhiteElo "1500"]
[BlackElo "1100"]

1. e4 { [%eval 0.3] } e5 { [%eval 0.3] } 2. Qh5 { [%eval -0.6] } Nc6 { [%eval -0.6] } 3. Bc4
{ [%eval -0.5] } Nf6 { [%eval #1] } 4. Qxf7# 1-0
"""
"""A scholar's mate with evaluations, of players whose names are HTML."""
MATE = 100_000
EVALS = (15, 30, 30, -60, -60, -50, MATE)
"""Its evaluations before each move, in centipawns of White; a mate is MATE."""
WITHOUT = "1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0"
