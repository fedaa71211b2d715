"""What is measured: each part sends requests to one server and gives figures."""

import asyncio
import random
import statistics
import time

from client import ask

# Tokens of prompts and of answers in the mixed load: the shortest and the longest, drawn so that short ones are frequent.
PROMPTS, ANSWERS = (16, 512), (16, 128)
LONG_PROMPT = 3000
SYSTEM_PROMPT = 2000
# Tokens of an answer of which only the first one counts: the very first may have no text.
SHORT_ANSWER = 8
# Short requests that are sent while one long prompt is evaluated, this many seconds after it and after each other.
SHORT_AFTER = 0.15

# Each is a token of its own in the vocabularies of the models that are measured, with the space before it.
WORDS = ("rope line ship sail wind mast deck port star crew land rain cloud wave tide rock sand road hill tree leaf root seed "
         "corn bread milk salt fire lamp door wall roof room hand foot head heart song word book page time year night").split()


def text(random_, tokens):
    """A text of about so many tokens that no other text begins with."""
    return " ".join(random_.choices(WORDS, k=tokens))


def drawn(random_, bounds):
    """A length between bounds; its logarithm is uniform."""
    low, high = bounds
    return round(low * (high / low) ** random_.random())


def completion(model, prompt, tokens):
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def load(address, model, options, seed):
    """Clients that each send one request after another: all lengths and texts follow from the seed, so that all servers get
    the same."""

    async def client(number):
        random_ = random.Random(f"{seed} {number}")
        answers = []
        for _ in range(options.requests):
            body = completion(model, text(random_, drawn(random_, PROMPTS)), drawn(random_, ANSWERS))
            answers.append(await ask(address, "/v1/completions", body))
        return answers

    start = time.perf_counter()
    answers = sum(await asyncio.gather(*(client(number) for number in range(options.clients))), [])
    seconds = max(answer.end for answer in answers) - start
    generated = sum(answer.completion_tokens for answer in answers)
    between = [gap * 1000 for answer in answers for gap in answer.between]
    first = [answer.first * 1000 for answer in answers]
    total = generated + sum(answer.prompt_tokens for answer in answers)
    return {"total tok/s": total / seconds,
            "generated tok/s": generated / seconds,
            "first token p50, ms": statistics.median(first), "first token p99, ms": quantile(first, 0.99),
            "between tokens p50, ms": statistics.median(between), "between tokens p99, ms": quantile(between, 0.99)}


async def prefill(address, model, options, seed):
    """The first token of short requests while a long prompt is evaluated, against the same with nothing else to do."""
    random_ = random.Random(f"prefill {seed}")
    short = lambda: ask(address, "/v1/completions", completion(model, text(random_, 24), SHORT_ANSWER))  # noqa: E731
    alone = await short()
    long = asyncio.create_task(ask(address, "/v1/completions", completion(model, text(random_, LONG_PROMPT), SHORT_ANSWER)))
    beside = []
    while not long.done():
        await asyncio.sleep(SHORT_AFTER)
        answer = await short()
        if not long.done():
            beside.append(answer.first * 1000)
    figures = {"first token alone, ms": alone.first * 1000, "first token of the long prompt, ms": (await long).first * 1000}
    # A server that does not let the short one in has answered none before the long one was done.
    return figures | {"first token under prefill, ms": max(beside, default=(await long).first * 1000)}


async def prefix(address, model, options, seed):
    """The first tokens of two requests that share a long system prompt."""
    random_ = random.Random(f"prefix {seed}")
    system = text(random_, SYSTEM_PROMPT)

    async def first(question):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return await ask(address, "/v1/chat/completions",
                         {"model": model, "messages": messages, "max_tokens": SHORT_ANSWER, "temperature": 0, "ignore_eos": True})

    cold, warm = await first(text(random_, 12)), await first(text(random_, 12))
    return {"first request of a prefix, ms": cold.first * 1000, "second request of a prefix, ms": warm.first * 1000,
            "cached tokens": warm.cached_tokens}


def quantile(values, share):
    """The value that this share of the values does not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


PARTS = {"load": load, "prefill": prefill, "prefix": prefix}
