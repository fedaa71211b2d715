"""The official OpenAI client against a running server.

    ROPEWALK_URL=http://127.0.0.1:8080 python openai_client.py

Any model will do: nothing here depends on what it says.
"""

import asyncio
import time
import unittest

import openai
from running import MODEL, URL, get

BASE_URL = f"{URL}/v1"
# Errors are to be seen at the first try.
CLIENT = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=120)
MESSAGES = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Name the planets."},
]


def chat(**fields):
    fields = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0} | fields
    return CLIENT.chat.completions.create(**fields)


def complete(**fields):
    fields = {"model": MODEL, "prompt": "The planets are", "max_tokens": 24, "temperature": 0} | fields
    return CLIENT.completions.create(**fields)


RESPONSE = {"model": MODEL, "input": "Name the planets.", "max_output_tokens": 24, "temperature": 0}


def respond(**fields):
    return CLIENT.responses.create(**(RESPONSE | fields))


def health() -> dict:
    return get("/health")


class Models(unittest.TestCase):
    def test_list_and_retrieve(self):
        models = CLIENT.models.list().data
        self.assertEqual([model.object for model in models], ["model"])
        self.assertEqual(CLIENT.models.retrieve(MODEL), models[0])

    def test_unknown_name(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            CLIENT.models.retrieve("no-such-model")
        self.assertEqual(raised.exception.code, "model_not_found")


class Chat(unittest.TestCase):
    def test_whole_answer(self):
        answer = chat()
        choice = answer.choices[0]
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(choice.message.role, "assistant")
        self.assertIsInstance(choice.message.content, str)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertGreater(answer.usage.prompt_tokens, 0)
        self.assertGreater(answer.usage.completion_tokens, 0)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_stream_adds_up_to_the_whole_answer(self):
        whole = chat()
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        self.assertEqual(reasons[-1], whole.choices[0].finish_reason)
        self.assertEqual(set(reasons[:-1]), {None})
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)

    def test_same_seed_same_text(self):
        texts = {chat(temperature=1.5, seed=7).choices[0].message.content for _ in range(2)}
        self.assertEqual(len(texts), 1)

    def test_token_limit(self):
        answer = chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=2, extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.completion_tokens, 2)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_stop_string(self):
        text = chat().choices[0].message.content
        if len(text) < 6:
            self.skipTest("the model says too little to stop in the middle of it")
        stop = text[2:6]
        stopped = chat(stop=[stop]).choices[0]
        self.assertEqual(stopped.message.content, text[: text.index(stop)])
        self.assertEqual(stopped.finish_reason, "stop")

    def test_several_answers(self):
        answer = chat(n=2)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertEqual(answer.choices[0].message, answer.choices[1].message)

    def test_logprobs(self):
        choice = chat(logprobs=True, top_logprobs=3).choices[0]
        self.assertGreater(len(choice.logprobs.content), 0)
        for token in choice.logprobs.content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            # A greedy answer takes the likeliest token.
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=4)
        said = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content)
        self.assertTrue(said.decode(errors="replace").startswith(choice.message.content[:1]))

    def test_content_in_parts(self):
        parts = [{"type": "text", "text": "Name the planets."}]
        answer = chat(messages=[MESSAGES[0], {"role": "user", "content": parts}])
        self.assertEqual(answer.choices[0].message, chat().choices[0].message)


class Completions(unittest.TestCase):
    def test_whole_answer_and_stream(self):
        whole = complete()
        self.assertEqual(whole.object, "text_completion")
        text = "".join(chunk.choices[0].text for chunk in complete(stream=True))
        self.assertEqual(text, whole.choices[0].text)

    def test_several_prompts(self):
        alone = [complete(prompt=prompt).choices[0].text for prompt in ("One", "Two")]
        together = complete(prompt=["One", "Two"])
        self.assertEqual([choice.text for choice in together.choices], alone)

    def test_prompt_as_token_ids(self):
        ids = [5, 6, 7, 8]
        answer = complete(prompt=ids)
        self.assertEqual(answer.usage.prompt_tokens, len(ids))
        self.assertEqual(complete(prompt=[ids]).choices[0].text, answer.choices[0].text)

    def test_logprobs_of_the_prompt(self):
        ids = [5, 6, 7, 8]
        answer = complete(prompt=ids, echo=True, logprobs=1, max_tokens=1, extra_body={"ignore_eos": True})
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.token_logprobs), len(ids) + 1)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertIsNone(logprobs.top_logprobs[0])
        for name, logprob, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
            self.assertLessEqual(logprob, 0)
            self.assertIn(name, top)
            self.assertLessEqual(logprob, max(top.values()))
        self.assertEqual(logprobs.text_offset, sorted(logprobs.text_offset))

    def test_echo_without_generation(self):
        answer = complete(echo=True, max_tokens=0, logprobs=0)
        self.assertEqual(answer.choices[0].text, "The planets are")
        self.assertEqual(answer.usage.completion_tokens, 0)


class Embeddings(unittest.TestCase):
    def embed(self, texts, **fields):
        # The client asks for base64 and decodes it, unless told otherwise.
        return [item.embedding for item in CLIENT.embeddings.create(model=MODEL, input=texts, **fields).data]

    def test_vectors_of_length_one(self):
        answer = CLIENT.embeddings.create(model=MODEL, input=["A rope", "A line"])
        self.assertEqual([item.index for item in answer.data], [0, 1])
        self.assertGreater(answer.usage.prompt_tokens, 0)
        for item in answer.data:
            self.assertAlmostEqual(sum(value * value for value in item.embedding), 1, places=4)

    def test_both_encodings_and_company_give_the_same(self):
        alone, together = self.embed("A rope"), self.embed(["A rope", "Something else altogether"])
        self.assertEqual(alone[0], together[0])
        plain = self.embed("A rope", encoding_format="float")
        for a, b in zip(alone[0], plain[0], strict=True):
            self.assertAlmostEqual(a, b, places=6)

    def test_fewer_dimensions(self):
        self.assertEqual(len(self.embed("A rope", dimensions=8)[0]), 8)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError):
            self.embed("")


class Responses(unittest.TestCase):
    def test_whole_answer_and_stream(self):
        whole = respond()
        self.assertIn(whole.status, ("completed", "incomplete"))
        self.assertGreater(whole.usage.output_tokens, 0)
        with CLIENT.responses.stream(**RESPONSE) as stream:
            types, text = [], ""
            for event in stream:
                types.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
        self.assertEqual(text, whole.output_text)
        self.assertEqual(types[0], "response.created")
        self.assertEqual(types[-1], f"response.{whole.status}")

    def test_a_conversation_is_remembered(self):
        first = respond()
        second = respond(previous_response_id=first.id, input="Which of them is red?")
        self.assertGreater(second.usage.input_tokens, first.usage.total_tokens)
        # The first turn was kept, so that little of it is evaluated again.
        self.assertGreater(second.usage.input_tokens_details.cached_tokens, 0)

    def test_retrieve_and_delete(self):
        response = respond()
        self.assertEqual(CLIENT.responses.retrieve(response.id).output_text, response.output_text)
        CLIENT.responses.delete(response.id)
        with self.assertRaises(openai.NotFoundError):
            CLIENT.responses.retrieve(response.id)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            respond(previous_response_id="resp_0")
        self.assertEqual(raised.exception.code, "previous_response_not_found")


class Errors(unittest.TestCase):
    def refused(self, error: type[openai.APIStatusError], code: str, param: str | None, request, **fields):
        with self.assertRaises(error) as raised:
            request(**fields)
        self.assertEqual((raised.exception.code, raised.exception.param), (code, param))
        self.assertIn("error", raised.exception.response.json())

    def test_each_kind(self):
        bad = openai.BadRequestError
        self.refused(openai.NotFoundError, "model_not_found", "model", chat, model="no-such-model")
        self.refused(bad, "invalid_value", "temperature", chat, temperature=5)
        self.refused(bad, "invalid_value", "messages", chat, messages=[])
        self.refused(bad, "invalid_type", "stop", chat, stop=5)
        self.refused(bad, "unsupported_value", "response_format.type", chat, response_format={"type": "xml"})
        self.refused(bad, "invalid_value", "prompt[0]", complete, prompt=[2**31])
        self.refused(bad, "unsupported_parameter", "suffix", complete, suffix="end")
        context = CLIENT.models.list().data[0].max_model_len
        self.refused(bad, "context_length_exceeded", "prompt", complete, prompt=[5] * context)


class Operation(unittest.TestCase):
    def test_several_clients_at_once(self):
        async def ask(client, seed):
            fields = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "seed": seed}
            return await client.chat.completions.create(**fields)

        async def ask_all():
            async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0) as client:
                return await asyncio.gather(*(ask(client, seed) for seed in range(6)))

        self.assertEqual(len(asyncio.run(ask_all())), 6)

    def test_a_client_that_disconnects_frees_its_slot_within_a_second(self):
        context = CLIENT.models.list().data[0].max_model_len
        stream = chat(stream=True, max_tokens=context, extra_body={"ignore_eos": True})
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        stream.close()
        left = time.monotonic()
        while (state := health())["running"] or state["waiting"]:
            self.assertLess(time.monotonic() - left, 1)
            time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
