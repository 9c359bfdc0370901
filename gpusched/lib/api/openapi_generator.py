"""Generate the OpenAPI document of this process, by one thread at a time."""

from typing import Any

from drf_spectacular.generators import SchemaGenerator

from gpusched.lib.cache import Cache

_documents: Cache[tuple[bool, str | None], Any] = Cache()


class Generator(SchemaGenerator):
    """drf-spectacular loads its extensions with the first document of a process, and fails if two threads do so at
    once. Later requests get the same document."""

    def get_schema(self, request: Any = None, public: bool = False) -> Any:
        # `?version=` of a request is in the document.
        version = self.api_version or getattr(request, "version", None)
        generate: Any = super().get_schema
        return _documents.get((public, version), lambda: generate(request, public))
