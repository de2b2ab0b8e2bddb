"""The self-play fine-tuning loop: EXPLORE -> TRAIN -> ARENA -> EVAL, generation by generation, and
who is promoted.
"""
