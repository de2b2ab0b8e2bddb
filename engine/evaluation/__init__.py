"""Evaluators: planes in, logits and win, draw and loss out; features of moves."""
