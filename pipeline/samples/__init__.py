"""The embedded dump: games that the embedded network plays as people of 800 to 2400 do."""
