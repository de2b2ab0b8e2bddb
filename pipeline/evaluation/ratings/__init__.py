"""Networks that are told ratings: do they find, and blunder, as people of that rating do?"""
