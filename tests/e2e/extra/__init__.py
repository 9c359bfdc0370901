"""An app of the tests whose one migration changes tables that every request needs."""
