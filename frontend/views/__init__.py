"""The pages by subject."""
