"""A replica of the OpenAI API without a model: python openai_replica.py PORT [SECONDS UNTIL IT LISTENS].

The last message of a chat is a command: `count N` streams N words, `count N PAUSE` with pauses in seconds, `hang`
sends nothing, `stall` stops after a word, `die` ends the process after two words, `cut` ends the connection in the
middle of an event, `rubbish` answers with something else than HTTP, `fail` with status 500, `long` with a context
that is too long, and `headers` with the headers and the body that have arrived."""

import asyncio
import json
import os
import sys
import time
from typing import Any

active: set[int] = set()
totals = {"requests": 0, "closed_early": 0, "connections": 0, "sent": 0, "most_at_once": 0}


def answer(status: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, model: str) -> bytes:
    delta: dict[str, Any] = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    value = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [delta]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def chat(body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
    """Answer. Return whether the connection can go on."""
    what, *numbers = body["messages"][-1]["content"].split()
    if what == "hang":
        await asyncio.sleep(600)
    if what == "rubbish":
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        return False
    if what == "fail":
        error = {"message": "CUDA error", "type": "server_error", "param": None, "code": None}
        writer.write(answer(500, {"error": error}))
        return True
    if what == "long":
        error = {"message": "too many tokens", "type": "invalid_request_error", "param": "messages", "code": "long"}
        writer.write(answer(400, {"error": error}))
        return True
    count = int(numbers[0]) if numbers else 1000
    if not body.get("stream"):
        message = {"role": "assistant", "content": "word " * count}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        value = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        writer.write(answer(200, value))
        return True
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    for number in range(count):
        writer.write(chunk(event(f"word{number} ", body["model"])))
        await writer.drain()
        totals["sent"] += 1
        if what == "die" and number == 1:
            await asyncio.sleep(0.1)
            os._exit(1)
        if what == "cut" and number == 1:
            writer.write(chunk(b'data: {"choi'))
            return False
        if what == "stall":
            await asyncio.sleep(600)
        if len(numbers) > 1:
            await asyncio.sleep(float(numbers[1]))
    writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return True


async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
    if path == "/state":
        writer.write(answer(200, {**totals, "active": len(active), "pid": os.getpid()}))
    elif path == "/v1/models":
        writer.write(answer(200, {"object": "list", "data": [{"id": "chat", "object": "model"}]}))
    elif path == "/v1/chat/completions":
        return await chat(body, writer)
    elif path == "/v1/completions":
        choice = {"index": 0, "text": body["prompt"] * 2, "finish_reason": "stop", "logprobs": None}
        value = {"id": "t", "object": "text_completion", "created": 1, "model": body["model"], "choices": [choice]}
        writer.write(answer(200, value))
    elif path == "/v1/embeddings":
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": n, "embedding": [float(len(t)), 0.5]} for n, t in enumerate(inputs)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        writer.write(answer(200, {"object": "list", "model": body["model"], "data": data, "usage": usage}))
    else:
        writer.write(answer(404, {"error": {"message": "no", "type": "x", "param": None, "code": None}}))
    return True


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    totals["connections"] += 1
    try:
        while await serve_one(reader, writer):
            pass
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return whether the client wants another answer over this connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    path = head.split()[1]
    lengths = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
    raw = await reader.readexactly(int(lengths[0]) if lengths else 0)
    work = asyncio.create_task(respond(path, json.loads(raw or b"{}"), writer))
    if path.startswith("/v1/chat"):
        totals["requests"] += 1
        active.add(id(work))
        totals["most_at_once"] = max(totals["most_at_once"], len(active))
    leaving = asyncio.create_task(left(reader))
    await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
    is_answered = work.done() and work.exception() is None
    is_kept = is_answered and work.result() and "connection: close" not in head.lower()
    totals["closed_early"] += not is_answered
    work.cancel()
    leaving.cancel()
    await asyncio.gather(work, leaving, return_exceptions=True)
    active.discard(id(work))
    return is_kept


async def left(reader: asyncio.StreamReader) -> None:
    """Wait until the client has left. It sends nothing while it waits for an answer."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.02)


async def main() -> None:
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)  # noqa: TID251 - this is the program under test
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=8 << 20, backlog=500)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
