"""Django's PostgreSQL, and a cheaper way to see that a kept connection has been closed."""
