"""Serve embeddings of texts, from the weights in the wheel of wordllama: in batches, or as an OpenAI server on a port.

An input of a batch is a text or {"text": ...}; its result is {"embedding": [...]}, 256 numbers of length one."""

import argparse
import base64
import json
import os
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import wordllama

from gpusched.serve import serve

MODEL = "wordllama-256"
# wordllama looks for its tokenizer in the wrong folder of its wheel, and would download it.
model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
_lock = Lock()


def embed(texts: Sequence[str]) -> Any:
    """Return an array with a row of 256 numbers for each text."""
    with _lock:
        return model.embed(list(texts), norm=True)


def answer(inputs: list[Any]) -> list[Any]:
    """Return the results of a batch; an input without a text fails alone."""
    texts = [value.get("text") if isinstance(value, dict) else value for value in inputs]
    rows = iter(embed([text for text in texts if isinstance(text, str)] or [""]))
    failure = ValueError('an input is a text, or {"text": ...}')
    return [
        {"embedding": [round(float(number), 6) for number in next(rows)]} if isinstance(text, str) else failure
        for text in texts
    ]


class OpenAI(BaseHTTPRequestHandler):
    """GET /v1/models and POST /v1/embeddings."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "gpusched", "created": 0}]}
        self._send(200, models) if self.path == "/v1/models" else self._fail(404, "there is no such address")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/embeddings":
            return self._fail(404, "this model serves embeddings only: POST /v1/embeddings")
        try:
            body = json.loads(raw)
            texts = [body["input"]] if isinstance(body["input"], str) else list(body["input"])
        except (ValueError, KeyError, TypeError):
            texts = []
        if not texts or not all(isinstance(text, str) for text in texts):
            return self._fail(400, "input must be a text or a list of texts")
        return self._send(200, self._embeddings(texts, body.get("encoding_format"), body.get("model") or MODEL))

    def _embeddings(self, texts: list[str], encoding: str | None, name: str) -> dict[str, Any]:
        rows = embed(texts)
        encoded = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
        values: list[Any] = encoded if encoding == "base64" else rows.tolist()
        data = [{"object": "embedding", "index": n, "embedding": value} for n, value in enumerate(values)]
        tokens = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": name, "usage": usage}

    def _fail(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, help="serve the OpenAI API on this port instead")
    options = parser.parse_args()
    if options.port:
        ThreadingHTTPServer(("127.0.0.1", options.port), OpenAI).serve_forever()
    serve(answer)
