"""The reference of the documents, written from the code: command line, REST, SDK, settings and metrics."""
