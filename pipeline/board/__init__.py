"""The board in the browser: play a network, ask what people would play, review a game."""
