"""One client of a server that speaks OpenAI's API: sends a request, and notes when each piece of the answer came.

Written on asyncio's bare connections, so that clients take little of the processor that the servers are measured on.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field

# The longest wait for one line of an answer, in seconds.
PATIENCE = 300


class Failed(Exception):
    """A server that refused a request, or broke its answer off."""


@dataclass
class Answer:
    """Times in seconds of `time.perf_counter`, and counts as the server tells them."""

    sent: float
    pieces: list = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def first(self):
        """Seconds until the first piece of text."""
        return self.pieces[0] - self.sent

    @property
    def between(self):
        """Seconds between one piece and the next, a piece being a token for all but those that make half a character."""
        return [later - earlier for earlier, later in zip(self.pieces, self.pieces[1:])]

    @property
    def end(self):
        return self.pieces[-1]


async def ask(address, path, body):
    """Posts `body` for a stream and reads the answer to its end."""
    body = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    host, port = address
    answer = Answer(time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = (f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
                f"content-length: {len(body)}\r\n\r\n")
        writer.write(head.encode() + body)
        status = (await line_of(reader)).split(" ")
        if len(status) < 2 or status[1] != "200":
            raise Failed(f"{path} was answered {' '.join(status)}: {(await reader.read(2000)).decode(errors='replace')}")
        while not (line := await line_of(reader)).startswith("data: [DONE]"):
            if line.startswith("data: "):
                note(answer, json.loads(line.removeprefix("data: ")))
            elif line.startswith("error: ") or (not line and reader.at_eof()):
                raise Failed(f"{path}: the answer broke off: {line}")
    finally:
        writer.close()
    if not answer.pieces or not answer.completion_tokens:
        raise Failed(f"{path}: an answer without text or usage")
    return answer


async def line_of(reader):
    line = await asyncio.wait_for(reader.readline(), PATIENCE)
    return line.decode(errors="replace").rstrip("\r\n")


def note(answer, chunk):
    """Takes over what one chunk says."""
    if "error" in chunk:
        raise Failed(f"in the middle of an answer: {chunk['error']}")
    if usage := chunk.get("usage"):
        answer.prompt_tokens, answer.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in chunk.get("choices", []):
        if choice.get("text") or choice.get("delta", {}).get("content"):
            answer.pieces.append(time.perf_counter())
