"""Files here, on the web and in object stores: names that appear whole, locks, streams that
resume.
"""
