"""Structured output and tools through the official Ollama client, against a running server.

    ROPEWALK_URL=http://127.0.0.1:8080 python ollama_tools_client.py

Any model will do: constraints see to it that answers have the form that is asked for.
"""

import json
import unittest

import ollama
from running import MODEL, URL

CLIENT = ollama.Client(host=URL, timeout=300)
MESSAGES = [{"role": "user", "content": "What is the weather in Bonn?"}]
OPTIONS = {"temperature": 0, "num_predict": 200}
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "cloudy"]}, "degrees": {"type": "integer", "minimum": -50, "maximum": 50}},
    "required": ["sky", "degrees"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"rain in {city}"


class Structured(unittest.TestCase):
    def test_a_schema(self):
        answer = CLIENT.chat(model=MODEL, messages=MESSAGES, options=OPTIONS, format=SCHEMA)
        self.assertIn(json.loads(answer.message.content)["sky"], ("clear", "cloudy"))
        answer = CLIENT.generate(model=MODEL, prompt="The weather:", options=OPTIONS, format=SCHEMA)
        self.assertIsInstance(json.loads(answer.response)["degrees"], int)

    def test_json(self):
        answer = CLIENT.chat(model=MODEL, messages=MESSAGES, options=OPTIONS, format="json")
        self.assertTrue(answer.message.content.lstrip().startswith("{"))


class Tools(unittest.TestCase):
    def test_text_or_calls(self):
        answer = CLIENT.chat(model=MODEL, messages=MESSAGES, options=OPTIONS, tools=[get_weather])
        self.assertTrue(answer.message.content or answer.message.tool_calls)
        for call in answer.message.tool_calls or []:
            self.assertEqual(call.function.name, "get_weather")
            get_weather(**call.function.arguments)
        lines = list(CLIENT.chat(model=MODEL, messages=MESSAGES, options=OPTIONS, tools=[get_weather], stream=True))
        self.assertTrue(lines[-1].done)

    def test_a_turn_with_a_result(self):
        call = {"function": {"name": "get_weather", "arguments": {"city": "Bonn"}}}
        turns = MESSAGES + [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "get_weather", "content": "rain"},
        ]
        answer = CLIENT.chat(model=MODEL, messages=turns, options=OPTIONS, tools=[get_weather])
        self.assertTrue(answer.message.content or answer.message.tool_calls)

    def test_models_say_that_they_take_tools(self):
        self.assertIn("tools", CLIENT.show(MODEL).capabilities)


if __name__ == "__main__":
    unittest.main()
