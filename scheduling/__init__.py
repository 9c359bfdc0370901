"""Who goes where, when."""
