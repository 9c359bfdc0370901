"""What the templates say with."""
