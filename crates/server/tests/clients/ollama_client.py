"""The official Ollama client against a running server.

    ROPEWALK_URL=http://127.0.0.1:8080 python ollama_client.py

Any model will do: nothing here depends on what it says.
"""

import asyncio
import unittest

import ollama
from running import CONTEXT, MODEL, URL

CLIENT = ollama.Client(host=URL, timeout=120)
MESSAGES = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Name the planets."},
]
GREEDY = {"temperature": 0, "num_predict": 24}


def chat(**fields):
    return CLIENT.chat(**({"model": MODEL, "messages": MESSAGES, "options": GREEDY} | fields))


def generate(**fields):
    return CLIENT.generate(**({"model": MODEL, "prompt": "The planets are", "options": GREEDY} | fields))


class Embeddings(unittest.TestCase):
    def test_vectors(self):
        answer = CLIENT.embed(MODEL, ["A rope", "A line"])
        self.assertEqual(len(answer.embeddings), 2)
        self.assertAlmostEqual(sum(value * value for value in answer.embeddings[0]), 1, places=4)
        self.assertEqual(CLIENT.embeddings(MODEL, "A rope").embedding, answer.embeddings[0])


class Models(unittest.TestCase):
    def test_list_show_and_running(self):
        listed = CLIENT.list().models
        self.assertEqual([model.model for model in listed], [MODEL])
        self.assertGreater(listed[0].size, 0)
        shown = CLIENT.show(MODEL)
        self.assertEqual(shown.details, listed[0].details)
        self.assertIn("completion", shown.capabilities)
        self.assertIn(CONTEXT, shown.modelinfo.values())
        running = CLIENT.ps().models
        self.assertEqual([model.model for model in running], [MODEL])
        self.assertEqual(running[0].context_length, CONTEXT)


class Chat(unittest.TestCase):
    def test_whole_answer(self):
        answer = chat()
        self.assertEqual((answer.model, answer.message.role, answer.done), (MODEL, "assistant", True))
        self.assertIn(answer.done_reason, ("stop", "length"))
        for figure in ("prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration", "total_duration"):
            self.assertGreater(answer[figure], 0, figure)

    def test_stream_adds_up_to_the_whole_answer(self):
        whole = chat()
        parts = list(chat(stream=True))
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(parts[-1].eval_count, whole.eval_count)

    def test_token_limit_and_seed(self):
        options = {"temperature": 1.5, "seed": 7, "num_predict": 3}
        answers = [chat(options=options) for _ in range(2)]
        self.assertEqual(len({answer.message.content for answer in answers}), 1)
        self.assertLessEqual(answers[0].eval_count, 3)

    def test_stop_string(self):
        text = chat().message.content
        if len(text) < 6:
            self.skipTest("the model says too little to stop in the middle of it")
        stopped = chat(options=GREEDY | {"stop": [text[2:6]]})
        self.assertEqual(stopped.message.content, text[: text.index(text[2:6])])
        self.assertEqual(stopped.done_reason, "stop")

    def test_several_clients_at_once(self):
        async def ask_all():
            client = ollama.AsyncClient(host=URL, timeout=120)
            requests = (client.chat(model=MODEL, messages=MESSAGES, options=GREEDY) for _ in range(4))
            return await asyncio.gather(*requests)

        self.assertEqual({answer.message.content for answer in asyncio.run(ask_all())}, {chat().message.content})


class Generate(unittest.TestCase):
    def test_whole_answer_and_stream(self):
        whole = generate()
        parts = list(generate(stream=True))
        self.assertEqual("".join(part.response for part in parts), whole.response)
        self.assertEqual(list(parts[-1].context), list(whole.context))

    def test_a_second_turn_goes_on_from_the_context(self):
        first = generate()
        second = generate(prompt="And then?", context=first.context)
        self.assertGreater(second.prompt_eval_count, len(first.context))

    def test_raw_prompts_are_shorter(self):
        self.assertLessEqual(generate(raw=True).prompt_eval_count, generate().prompt_eval_count)

    def test_no_prompt_loads_the_model(self):
        self.assertEqual(CLIENT.generate(model=MODEL).done_reason, "load")


class Errors(unittest.TestCase):
    def refused(self, status: int, words: str, request, **fields):
        with self.assertRaises(ollama.ResponseError) as raised:
            request(**fields)
        self.assertEqual(raised.exception.status_code, status)
        self.assertIn(words, raised.exception.error)

    def test_each_kind(self):
        self.refused(404, "does not run here", chat, model="no-such-model")
        self.refused(404, "does not run here", CLIENT.show, model="no-such-model")
        self.refused(400, "options.temperature", chat, options={"temperature": -1})
        self.refused(400, "format", chat, format={"type": "rope"})
        self.refused(400, "the prompt has", generate, context=[5] * CONTEXT)
        with self.assertRaises(ollama.ResponseError):
            list(chat(model="no-such-model", stream=True))


if __name__ == "__main__":
    unittest.main()
