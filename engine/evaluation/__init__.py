"""Evaluators, from planes to logits and win/draw/loss; features of legal moves."""
