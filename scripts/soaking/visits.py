"""What clients of the soak do. Each visit is one connection."""

import asyncio
import contextlib
import json
import re
import socket

# Any answer has to be there by then, however full the server is.
PATIENCE_S = 120
BODY_BYTES_MAX = 4 << 20
WORDS = "rope strand hemp tar knot splice sail mast deck wind harbour cable yarn twist anchor".split()

# Bodies and heads that are wrong: method, path, head, body, and the statuses that are right.
JSON = "content-type: application/json\r\n"
MALFORMED = [
    ("POST", "/v1/chat/completions", JSON, "{", {400}),
    ("POST", "/v1/chat/completions", JSON, "[" * 5000, {400}),
    ("POST", "/v1/chat/completions", JSON, '{"model": 5}', {400}),
    ("POST", "/v1/chat/completions", JSON, '{"model": "nobody", "messages": []}', {404}),
    ("POST", "/v1/chat/completions", "content-type: text/plain\r\n", "hello", {415}),
    ("POST", "/v1/completions", JSON, '{"prompt": {}}', {400}),
    ("POST", "/v1/responses", JSON, '{"input": "Hi", "previous_response_id": "resp_0"}', {400}),
    ("POST", "/v1/messages", JSON, '{"messages": "Hi"}', {400}),
    ("POST", "/api/chat", JSON, '{"model": "nobody", "messages": []}', {404}),
    ("POST", "/api/generate", JSON, '{"prompt": 5}', {400}),
    ("POST", "/v1/embeddings", JSON, '{"input": []}', {400}),
    ("GET", "/v1/chat/completions", "", "", {405}),
    ("DELETE", "/v1/responses/resp_0", "", "", {404}),
    ("GET", "/" + "x" * 3000, "", "", {404}),
    ("BREW", "/coffee", "", "", {404, 405}),
]


class Failure(Exception):
    """An answer other than the request deserves."""


async def get(address, path):
    async with connected(address) as (reader, writer):
        writer.write(head("GET", path, "", 0))
        return await answer(reader)


class Visitor:
    """A client that does one thing, chosen by its dice."""

    def __init__(self, address, model, context, dice):
        self.address, self.model, self.context, self.dice = address, model, context, dice
        self.what = "a visit"

    async def come(self):
        """Visits, and says what kind of visit it was."""
        kinds = {self.whole: 30, self.stream: 30, self.other: 10, self.cancelled: 15, self.malformed: 8, self.oversized: 3,
                 self.deaf: 3, self.unfinished: 3, self.noise: 2}
        kind = self.dice.choices(list(kinds), list(kinds.values()))[0]
        self.what = kind.__name__
        async with asyncio.timeout(PATIENCE_S):
            return await kind()

    async def whole(self):
        path, body, _ = self.request(stream=False)
        return self.expect(await self.ask("POST", path, body), {200, 429}, path)

    async def stream(self):
        path, body, end = self.request(stream=True)
        status, text = await self.ask("POST", path, body)
        if status == 200 and not re.search(end, text[-4000:]):
            raise Failure(f"a stream of {path} ends with {text[-300:]!r}")
        return self.expect((status, text), {200, 429}, f"stream of {path}")

    async def other(self):
        """What takes no answer of the model, or only one."""
        requests = [
            ("GET", "/v1/models", None), ("GET", "/metrics", None), ("GET", "/api/tags", None), ("GET", "/", None),
            ("POST", "/tokenize", {"prompt": self.text(20)}), ("POST", "/v1/embeddings", {"input": [self.text(5), self.text(9)]}),
            ("POST", "/v1/messages/count_tokens", {"messages": self.messages()}),
            ("POST", "/v1/responses", {"input": self.text(5), "max_output_tokens": 8}),
        ]
        method, path, body = self.dice.choice(requests)
        status, text = await self.ask(method, path, body and {"model": self.model, **body})
        if path == "/v1/responses" and status == 200:
            # Remembered answers take memory by design, within bounds that a soak would take long to reach.
            await self.ask("DELETE", f"{path}/{json.loads(text)['id']}", None)
        return self.expect((status, text), {200, 429}, path)

    async def cancelled(self):
        """Leaves in the middle of an answer, or before it."""
        path, body, _ = self.request(stream=self.dice.random() < 0.7)
        async with connected(self.address) as (reader, writer):
            writer.write(message("POST", path, body))
            with contextlib.suppress(asyncio.TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(self.dice.choice([0, 0.05, 0.5, 2])):
                    await reader.read(1)
                    await reader.readexactly(self.dice.randrange(4000))
            if self.dice.random() < 0.5:
                writer.transport.abort()
        return "cancelled"

    async def malformed(self):
        method, path, fields, body, statuses = self.dice.choice(MALFORMED)
        async with connected(self.address) as (reader, writer):
            writer.write(head(method, path, fields, len(body)) + body.encode())
            return self.expect(await answer(reader), statuses, f"{method} {path[:40]} {body[:40]}", "malformed")

    async def oversized(self):
        """A prompt that does not fit the context, or a body that is larger than allowed."""
        if self.dice.random() < 0.7:
            path, body, _ = self.request(stream=self.dice.random() < 0.5, text=self.text(self.context * 4))
            return self.expect(await self.ask("POST", path, body), {400}, path, "oversized")
        async with connected(self.address) as (reader, writer):
            size = BODY_BYTES_MAX + 1 + self.dice.randrange(1 << 20)
            writer.write(head("POST", "/v1/chat/completions", JSON, size))
            # The server may refuse and close before it has got all.
            with contextlib.suppress(ConnectionError):
                for _ in range(64):
                    writer.write(b" " * (size // 64))
                    await writer.drain()
                self.expect(await answer(reader), {413}, "an oversized body")
        return "oversized"

    async def deaf(self):
        """Asks for very much and does not read it; then leaves or goes on."""
        body = {"model": self.model, "messages": self.messages(), "stream": True, "n": 4, "logprobs": True, "top_logprobs": 20,
                "max_tokens": self.context, "ignore_eos": True}
        async with connected(self.address, receive_buffer=4096) as (reader, writer):
            writer.write(message("POST", "/v1/chat/completions", body))
            await asyncio.sleep(self.dice.uniform(1, 15))
            if self.dice.random() < 0.3:
                self.expect(await answer(reader), {200, 429}, "a late reader")
        return "deaf"

    async def unfinished(self):
        """Never sends all of its request."""
        path, body, _ = self.request(stream=False)
        text = message("POST", path, body)
        async with connected(self.address) as (_, writer):
            writer.write(text[:self.dice.randrange(len(text))])
            await asyncio.sleep(self.dice.uniform(0, 5))
        return "unfinished"

    async def noise(self):
        async with connected(self.address) as (reader, writer):
            writer.write(self.dice.randbytes(self.dice.randrange(1, 2000)) + b"\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                status, _ = await answer(reader)
                if status is not None and not 400 <= status < 500:
                    raise Failure(f"noise was answered with {status}")
        return "noise"

    async def long_stream(self):
        """A stream as long as the context allows, read to its end."""
        body = {"model": self.model, "messages": self.messages(), "stream": True, "max_tokens": self.context, "ignore_eos": True}
        status, text = await self.ask("POST", "/v1/chat/completions", body)
        if status != 200 or "[DONE]" not in text:
            raise Failure(f"a long stream got {status} and ends with {text[-300:]!r}")

    def request(self, stream, text=None):
        """A good request in some dialect: its path, its body, and what a stream of it ends with."""
        dice, tokens = self.dice, self.dice.randrange(1, 60)
        messages = [{"role": "user", "content": text}] if text else self.messages()
        common = {"model": self.model, "stream": stream, "temperature": dice.choice([0, 0.7, 1.5])}
        openai = common | {"ignore_eos": dice.random() < 0.5}
        chat = openai | {"messages": messages, "max_tokens": tokens} | dice.choice([
            {}, {}, {"n": 3, "seed": 5}, {"stop": [" ", "e"]}, {"logprobs": True, "top_logprobs": 3}, {"frequency_penalty": 1},
            {"response_format": {"type": "json_object"}, "ignore_eos": False},
            {"guided_choice": ["yes", "no"], "ignore_eos": False}])
        completion = openai | {"prompt": text or self.text(), "max_tokens": tokens, "echo": dice.random() < 0.3}
        response = common | {"input": text or self.text(), "max_output_tokens": tokens, "store": False}
        options = {"num_predict": tokens}
        return dice.choice([
            ("/v1/chat/completions", chat, r"data: \[DONE\]"),
            ("/v1/chat/completions", chat, r"data: \[DONE\]"),
            ("/v1/completions", completion, r"data: \[DONE\]"),
            ("/v1/responses", response, r"response\.(completed|incomplete)"),
            ("/v1/messages", common | {"temperature": 1, "messages": messages, "max_tokens": tokens}, "message_stop"),
            ("/api/chat", common | {"messages": messages, "options": options}, r'"done": ?true'),
            ("/api/generate", common | {"prompt": text or self.text(), "options": options}, r'"done": ?true'),
        ])

    def messages(self):
        system = [{"role": "user", "content": "You twist rope. Be brief."}, {"role": "assistant", "content": "Aye."}]
        return system * (self.dice.random() < 0.5) + [{"role": "user", "content": self.text()}]

    def text(self, words=None):
        return " ".join(self.dice.choices(WORDS, k=words or self.dice.choice([1, 3, 10, 20])))

    async def ask(self, method, path, body):
        async with connected(self.address) as (reader, writer):
            writer.write(message(method, path, body))
            return await answer(reader)

    def expect(self, got, statuses, what, name=None):
        """The name of the visit for the count, if the status is one of those."""
        status, text = got
        if status not in statuses:
            raise Failure(f"{self.what}: {what} got {status}: {text[:300]!r}")
        return "refused as the queue was full" if status == 429 else name or "answered"


@contextlib.asynccontextmanager
async def connected(address, receive_buffer=None):
    """A connection's two ends; it is closed in the end."""
    made = socket.socket()
    made.setblocking(False)
    if receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.get_running_loop().sock_connect(made, address)
        # The limit is what is read ahead of those who do not read.
        reader, writer = await asyncio.open_connection(sock=made, limit=4096 if receive_buffer else 1 << 16)
    except BaseException:
        made.close()
        raise
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def head(method, path, fields, size):
    return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}content-length: {size}\r\n\r\n".encode()


def message(method, path, body):
    text = b"" if body is None else json.dumps(body).encode()
    return head(method, path, JSON if text else "", len(text)) + text


async def answer(reader):
    """The status and all that follows the head, chunks as they come; no status if the connection was closed instead."""
    text = bytearray()
    while piece := await reader.read(1 << 16):
        text += piece
    found = re.match(rb"HTTP/1\.1 (\d+)", text)
    body = bytes(text).partition(b"\r\n\r\n")[2].decode(errors="replace")
    if b"transfer-encoding: chunked" in text[:2000].lower():
        if not body.endswith("0\r\n\r\n"):
            raise Failure(f"an answer was cut off after {body[-300:]!r}")
        body = re.sub(r"(?:\A|\r\n)[0-9a-f]+\r\n", "", body)
    return (int(found[1]) if found else None), body
