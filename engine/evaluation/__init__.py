"""Evaluators, from planes to logits and win, draw and loss; the hand-written one; features of
moves.
"""
