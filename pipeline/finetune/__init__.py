"""The self-play fine-tuning loop: each generation runs EXPLORE -> TRAIN -> ARENA -> EVAL, and its
candidate is promoted or rejected.
"""
