"""Finds what a new OpenAPI document breaks for scripts that an older one allows; run as a program: docs/openapi.json
against the one committed before it, but for what deploy/intended_breaks.txt names."""

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
    """Sentences about operations, parameters, bodies, answers and fields. What is sent may only become wider, and what
    is told only narrower; schemas are compared where they are used, by content and not by name."""
    found: list[str] = []
    pair = _Pair(old, new)
    for path, operations in old["paths"].items():
        for method, operation in operations.items():
            name, now = f"{method.upper()} {path}", new["paths"].get(path, {}).get(method)
            found += [f"{name} is gone"] if now is None else pair.operation(name, operation, now)
    return list(dict.fromkeys(found))


def previous_document() -> Document | None:
    """The document of the merge base with origin/main, else of the last commit, else the one before the last change of
    it; None without git or without another one."""
    here = Path(PATH).read_text()
    bases = [_git("merge-base", "HEAD", "origin/main").strip(), "HEAD"]
    bases += _git("log", "-2", "--format=%H", "--", PATH).split()
    for base in filter(None, bases):
        text = _git("show", f"{base}:{PATH}")
        if text and text != here:
            return dict(json.loads(text))
    return None


def intended_breaks() -> set[str]:
    """One sentence a line; why stands behind two spaces and a #."""
    lines = INTENDED.read_text().splitlines()
    return {line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#")}


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass
class _Pair:
    """Two documents, and which pairs of named schemas have been compared: they may hold themselves."""

    old: Document
    new: Document
    seen: set[tuple[str, str, bool]] = field(default_factory=set)

    def operation(self, name: str, old: Document, new: Document) -> Iterator[str]:
        before, now = ({(p["in"], p["name"]): p for p in one.get("parameters", ())} for one in (old, new))
        for key, parameter in before.items():
            if key not in now:
                yield f"{name}: parameter {key[1]} is gone"
            else:
                where = f"{name}: parameter {key[1]}"
                if key[0] == "query" and _is_text_made_narrower(parameter["schema"], now[key]["schema"]):
                    continue
                yield from self.schema(where, parameter.get("schema", {}), now[key].get("schema", {}), is_sent=True)
        for key, parameter in now.items():
            if parameter.get("required") and not before.get(key, {}).get("required"):
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
        for kind, one in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{where}: no {kind} any more"
            else:
                now = new["content"][kind].get("schema", {})
                yield from self.schema(where, one.get("schema", {}), now, is_sent=is_sent)

    def schema(self, where: str, old: Document, new: Document, *, is_sent: bool) -> Iterator[str]:
        before, now = _kinds(old, self.old), _kinds(new, self.new)
        was, has = ({kind for kind, _ in kinds} for kinds in (before, now))
        lacks, widens = _missing_types(was, has), _missing_types(has, was)
        if (lacks or (has and not was)) if is_sent else (widens or (was and not has)):
            yield f"{where} was {sorted(was) or 'anything'}, now {sorted(has) or 'anything'}"
            return
        for (kind, name), alternative in before.items():
            # A schema that was given another name is still found where there is one of its kind.
            same = [key for key in now if key == (kind, name)] or [key for key in now if key[0] == kind]
            if len(same) != 1:
                yield from [f"{where} may be no {name or kind} any more"] if is_sent and same else []
            elif not name or (pair := (name, same[0][1], is_sent)) not in self.seen:
                self.seen |= {pair} if name else set()
                yield from self._same_kind(name or where, alternative, now[same[0]], is_sent=is_sent)
        if not is_sent:
            more = [key for key in now if key not in before and sum(kind == key[0] for kind, _ in before) > 1]
            yield from (f"{where} may be {name or kind} now" for kind, name in more)

    def _same_kind(self, where: str, old: Document, new: Document, *, is_sent: bool) -> Iterator[str]:
        before, now = _enum_values(old), _enum_values(new)
        if before is not None and now is not None:
            yield from (f"{where} may not be {word} any more" for word in sorted(before - now))
        elif is_sent and now is not None:
            yield f"{where} may only be one of {sorted(now)} now"
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
        must, must_now = (set(one.get("required", ())) for one in (old, new))
        if is_sent:
            yield from (f"{where}.{name} is required now" for name in sorted(must_now - must))
        else:
            yield from (f"{where}.{name} may be missing now" for name in sorted((must - must_now) & fields.keys()))


def _is_text_made_narrower(old: Document, new: Document) -> bool:
    """In an address all is text: who sent no number where one is told now has been refused ever since."""
    return old == {"type": "string"} and new.get("type") in ("integer", "boolean")


def _kinds(schema: Document, document: Document) -> dict[tuple[str, str], Document]:
    """(type, name of the schema or "") → that alone, for all that it may be; empty: anything."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        kinds = _kinds(document["components"]["schemas"][name], document)
        return {(kind, own or name): one for (kind, own), one in kinds.items()}
    for many in ("anyOf", "oneOf"):
        if many in schema:
            parts = [_kinds(part, document) for part in schema[many]]
            return {key: one for part in parts for key, one in part.items()} if all(parts) else {}
    said = schema.get("type") or {"string" if word[0] == '"' else "integer" for word in _enum_values(schema) or ()}
    return {(kind, ""): schema for kind in ([said] if isinstance(said, str) else said)}


def _missing_types(some: set[str], others: set[str]) -> set[str]:
    """Types of the first that the others lack; where nothing is said, anything is allowed."""
    return some - others - ({"integer"} if "number" in others else set()) if others else set()


def _enum_values(schema: Document) -> set[str] | None:
    words = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if words is None else {json.dumps(word) for word in words}


if __name__ == "__main__":
    base = previous_document()
    problems = [] if base is None else sorted(set(breaking(base, json.loads(Path(PATH).read_text()))) - intended_breaks())
    print("\n".join(problems) or "API: " + ("no older document to compare with" if base is None else "ok"))
    if problems:
        print(f"meant so? Name it in deploy/{INTENDED.name}, with why.")
    sys.exit(bool(problems))
