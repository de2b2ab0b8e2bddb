"""A network that plays like one person, and its report."""
