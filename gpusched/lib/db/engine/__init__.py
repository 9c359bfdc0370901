"""Django's PostgreSQL engine with a cheaper check of persistent connections."""
