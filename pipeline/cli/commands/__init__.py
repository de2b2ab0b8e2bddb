"""The commands of `fianchetto`: a dataclass each, its fields the options, its docstring the
help.
"""
