"""The official Anthropic client against a running server.

    ROPEWALK_URL=http://127.0.0.1:8080 python anthropic_client.py

Any model will do: nothing here depends on what it says.
"""

import asyncio
import unittest

import anthropic
from running import CONTEXT, MODEL, URL

# Errors are to be seen at the first try.
CLIENT = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
MESSAGES = [{"role": "user", "content": "Name the planets."}]
# The client has no words of its own for temperature any more.
GREEDY = {"temperature": 0}
FIELDS = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "system": "You are brief.", "extra_body": GREEDY}


def create(**fields):
    return CLIENT.messages.create(**(FIELDS | fields))


class Models(unittest.TestCase):
    def test_list_and_retrieve(self):
        models = list(CLIENT.models.list())
        self.assertEqual([(model.id, model.type) for model in models], [(MODEL, "model")])
        self.assertEqual(CLIENT.models.retrieve(MODEL), models[0])


class Messages(unittest.TestCase):
    def test_whole_answer(self):
        message = create()
        self.assertEqual((message.type, message.role, message.model), ("message", "assistant", MODEL))
        self.assertEqual([block.type for block in message.content], ["text"])
        self.assertIn(message.stop_reason, ("end_turn", "max_tokens"))
        self.assertGreater(message.usage.input_tokens + message.usage.cache_read_input_tokens, 0)
        self.assertGreater(message.usage.output_tokens, 0)
        self.assertTrue(message._request_id)

    def test_stream_adds_up_to_the_whole_answer(self):
        whole = create()
        with CLIENT.messages.stream(**FIELDS) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual((final.stop_reason, final.stop_sequence), (whole.stop_reason, whole.stop_sequence))
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_raw_events_come_in_order(self):
        types = [event.type for event in create(stream=True)]
        self.assertEqual(types[:2], ["message_start", "content_block_start"])
        self.assertEqual(types[-3:], ["content_block_stop", "message_delta", "message_stop"])

    def test_stop_sequence(self):
        text = create().content[0].text
        if len(text) < 6:
            self.skipTest("the model says too little to stop in the middle of it")
        stopped = create(stop_sequences=[text[2:6]])
        self.assertEqual(stopped.content[0].text, text[: text.index(text[2:6])])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", text[2:6]))

    def test_tokens_are_counted_as_they_are_used(self):
        counted = {name: FIELDS[name] for name in ("model", "messages", "system")}
        usage = create().usage
        count = CLIENT.messages.count_tokens(**counted).input_tokens
        self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)

    def test_the_answer_goes_on_from_a_beginning(self):
        begun = MESSAGES + [{"role": "assistant", "content": "Mercury, Venus,"}]
        plain, message = create(), create(messages=begun)
        total = message.usage.input_tokens + message.usage.cache_read_input_tokens
        self.assertGreater(total, plain.usage.input_tokens + plain.usage.cache_read_input_tokens)

    def test_a_second_turn(self):
        first = create()
        turns = MESSAGES + [first.to_param(), {"role": "user", "content": [{"type": "text", "text": "Which is red?"}]}]
        self.assertGreater(create(messages=turns).usage.output_tokens, 0)

    def test_several_clients_at_once(self):
        async def ask_all():
            async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0, timeout=120) as client:
                return await asyncio.gather(*(client.messages.create(**FIELDS) for _ in range(4)))

        texts = {message.content[0].text for message in asyncio.run(ask_all())}
        self.assertEqual(texts, {create().content[0].text})


class Errors(unittest.TestCase):
    def refused(self, error: type[anthropic.APIStatusError], kind: str, words: str, **fields):
        with self.assertRaises(error) as raised:
            create(**fields)
        body = raised.exception.body
        self.assertEqual((body["type"], body["error"]["type"]), ("error", kind))
        self.assertIn(words, body["error"]["message"])

    def test_each_kind(self):
        bad, invalid = anthropic.BadRequestError, "invalid_request_error"
        self.refused(anthropic.NotFoundError, "not_found_error", "does not run here", model="no-such-model")
        self.refused(bad, invalid, "temperature", extra_body={"temperature": 1.5})
        self.refused(bad, invalid, "max_tokens", max_tokens=-1)
        self.refused(bad, invalid, "messages", messages=[])
        self.refused(bad, invalid, "tools", tools=[{"type": "bash_20250124", "name": "bash"}])
        self.refused(bad, invalid, "the prompt has", messages=[{"role": "user", "content": "long " * CONTEXT}])
        self.refused(bad, invalid, "unheard_of", extra_body={"unheard_of": 1})


if __name__ == "__main__":
    unittest.main()
