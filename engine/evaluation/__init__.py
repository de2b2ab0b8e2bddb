"""Evaluators: functions from planes to policy logits and win/draw/loss; features of moves."""
