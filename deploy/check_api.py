"""Find breaking changes between two OpenAPI documents. Run as a program, compare docs/openapi.json with the version
committed before it, except for the changes that deploy/intended_breaks.txt lists."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Document = dict[str, Any]
PATH = "docs/openapi.json"
INTENDED = Path(__file__).parent / "intended_breaks.txt"


def breaking(old: Document, new: Document) -> list[str]:
    """Return the breaking changes of operations, parameters, bodies, answers and fields. Requests may only accept more,
    and answers only become narrower. Schemas are compared at each use, by content and not by name."""
    changes: list[str] = []
    pair = _Pair(old, new)
    for path, operations in old["paths"].items():
        for method, operation in operations.items():
            name, new_operation = f"{method.upper()} {path}", new["paths"].get(path, {}).get(method)
            changes += [f"{name} is gone"] if new_operation is None else pair.operation(name, operation, new_operation)
    return list(dict.fromkeys(changes))


def previous_document() -> Document | None:
    """Return the first document that differs from the current one: of the merge base with origin/main, the last commit,
    or the commit before the last change. Return None without git or without such a document."""
    current = Path(PATH).read_text()
    bases = [_git("merge-base", "HEAD", "origin/main").strip(), "HEAD"]
    bases += _git("log", "-2", "--format=%H", "--", PATH).split()
    for base in filter(None, bases):
        text = _git("show", f"{base}:{PATH}")
        if text and text != current:
            return dict(json.loads(text))
    return None


def intended_breaks() -> set[str]:
    """Read one message per line; the reason follows after two spaces and a #."""
    lines = INTENDED.read_text().splitlines()
    return {line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#")}


def _git(*args: str) -> str:
    try:
        result = subprocess.run(["git", *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return result.stdout if result.returncode == 0 else ""


@dataclass
class _Pair:
    """Compare two documents. `seen`: pairs of named schemas already compared; schemas can be recursive."""

    old: Document
    new: Document
    seen: set[tuple[str, str, bool]] = field(default_factory=set)

    def operation(self, name: str, old: Document, new: Document) -> Iterator[str]:
        old_parameters, new_parameters = (
            {(p["in"], p["name"]): p for p in document.get("parameters", ())} for document in (old, new)
        )
        for key, parameter in old_parameters.items():
            if key not in new_parameters:
                yield f"{name}: parameter {key[1]} is gone"
            else:
                where = f"{name}: parameter {key[1]}"
                if key[0] == "query" and _is_text_made_narrower(parameter["schema"], new_parameters[key]["schema"]):
                    continue
                yield from self.schema(
                    where, parameter.get("schema", {}), new_parameters[key].get("schema", {}), is_sent=True
                )
        for key, parameter in new_parameters.items():
            if parameter.get("required") and not old_parameters.get(key, {}).get("required"):
                yield f"{name}: parameter {key[1]} is required now"
        yield from self._bodies(name, old.get("requestBody"), new.get("requestBody"))
        for code, answer in old["responses"].items():
            if code not in new["responses"]:
                yield from [f"{name}: no {code} any more"] if code < "300" else []
            else:
                yield from self._content(f"{name}: {code}", answer, new["responses"][code], is_sent=False)

    def _bodies(self, name: str, old: Document | None, new: Document | None) -> Iterator[str]:
        if old is not None and new is None:
            yield f"{name}: takes no body any more"
        if new is not None and new.get("required") and not (old or {}).get("required"):
            yield f"{name}: the body is required now"
        if old is not None and new is not None:
            yield from self._content(f"{name}: body", old, new, is_sent=True)

    def _content(self, where: str, old: Document, new: Document, *, is_sent: bool) -> Iterator[str]:
        for kind, content in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{where}: no {kind} any more"
            else:
                schema = new["content"][kind].get("schema", {})
                yield from self.schema(where, content.get("schema", {}), schema, is_sent=is_sent)

    def schema(self, where: str, old: Document, new: Document, *, is_sent: bool) -> Iterator[str]:
        old_kinds, new_kinds = _kinds(old, self.old), _kinds(new, self.new)
        old_types, new_types = ({kind for kind, _ in kinds} for kinds in (old_kinds, new_kinds))
        removed, added = _missing_types(old_types, new_types), _missing_types(new_types, old_types)
        if (removed or (new_types and not old_types)) if is_sent else (added or (old_types and not new_types)):
            yield f"{where} was {sorted(old_types) or 'anything'}, now {sorted(new_types) or 'anything'}"
            return
        for (kind, name), alternative in old_kinds.items():
            # A renamed schema still matches if it is the only one of its kind.
            matches = [key for key in new_kinds if key == (kind, name)] or [key for key in new_kinds if key[0] == kind]
            if len(matches) != 1:
                yield from [f"{where} may be no {name or kind} any more"] if is_sent and matches else []
            elif not name or (pair := (name, matches[0][1], is_sent)) not in self.seen:
                self.seen |= {pair} if name else set()
                yield from self._same_kind(name or where, alternative, new_kinds[matches[0]], is_sent=is_sent)
        if not is_sent:
            added_kinds = [
                key for key in new_kinds if key not in old_kinds and sum(kind == key[0] for kind, _ in old_kinds) > 1
            ]
            yield from (f"{where} may be {name or kind} now" for kind, name in added_kinds)

    def _same_kind(self, where: str, old: Document, new: Document, *, is_sent: bool) -> Iterator[str]:
        old_values, new_values = _enum_values(old), _enum_values(new)
        if old_values is not None and new_values is not None:
            yield from (f"{where} may not be {word} any more" for word in sorted(old_values - new_values))
        elif is_sent and new_values is not None:
            yield f"{where} may only be one of {sorted(new_values)} now"
        for part in ("items", "additionalProperties"):
            if isinstance(old.get(part), dict) and isinstance(new.get(part), dict):
                yield from self.schema(f"{where}[]", old[part], new[part], is_sent=is_sent)
        yield from self._fields(where, old, new, is_sent=is_sent)

    def _fields(self, where: str, old: Document, new: Document, *, is_sent: bool) -> Iterator[str]:
        fields = new.get("properties", {})
        for name, schema in old.get("properties", {}).items():
            if name in fields:
                yield from self.schema(f"{where}.{name}", schema, fields[name], is_sent=is_sent)
            else:
                yield f"{where}.{name} is gone"
        old_required, new_required = (set(schema_version.get("required", ())) for schema_version in (old, new))
        if is_sent:
            yield from (f"{where}.{name} is required now" for name in sorted(new_required - old_required))
        else:
            yield from (
                f"{where}.{name} may be missing now" for name in sorted((old_required - new_required) & fields.keys())
            )


def _is_text_made_narrower(old: Document, new: Document) -> bool:
    """In a query everything is text, and the server has always rejected text that is no number or boolean."""
    return old == {"type": "string"} and new.get("type") in ("integer", "boolean")


def _kinds(schema: Document, document: Document) -> dict[tuple[str, str], Document]:
    """Map (type, name of the schema or "") to that alternative, for all alternatives; empty: anything."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        kinds = _kinds(document["components"]["schemas"][name], document)
        return {(kind, inner_name or name): schema_part for (kind, inner_name), schema_part in kinds.items()}
    for union in ("anyOf", "oneOf"):
        if union in schema:
            parts = [_kinds(part, document) for part in schema[union]]
            return {key: schema_part for part in parts for key, schema_part in part.items()} if all(parts) else {}
    types = schema.get("type") or {"string" if word[0] == '"' else "integer" for word in _enum_values(schema) or ()}
    return {(kind, ""): schema for kind in ([types] if isinstance(types, str) else types)}


def _missing_types(types: set[str], allowed: set[str]) -> set[str]:
    """Return the types that `allowed` lacks; an empty `allowed` permits any type."""
    return types - allowed - ({"integer"} if "number" in allowed else set()) if allowed else set()


def _enum_values(schema: Document) -> set[str] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else {json.dumps(word) for word in values}


if __name__ == "__main__":
    base = previous_document()
    problems = (
        [] if base is None else sorted(set(breaking(base, json.loads(Path(PATH).read_text()))) - intended_breaks())
    )
    print("\n".join(problems) or "API: " + ("no older document to compare with" if base is None else "ok"))
    if problems:
        print(f"If a change is intended, list it in deploy/{INTENDED.name} with the reason.")
    sys.exit(bool(problems))
