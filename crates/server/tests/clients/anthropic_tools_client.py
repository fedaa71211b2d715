"""Tools through the official Anthropic client, against a running server.

    ROPEWALK_URL=http://127.0.0.1:8080 python anthropic_tools_client.py

Any model will do: constraints see to it that calls have the form that is asked for.
"""

import json
import unittest

import anthropic
from running import MODEL, URL

CLIENT = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)
QUESTION = {"role": "user", "content": "What is the weather in Bonn?"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}
FIELDS = {"model": MODEL, "max_tokens": 200, "messages": [QUESTION], "tools": [TOOL]}


class Tools(unittest.TestCase):
    def test_any_and_a_turn_with_the_result(self):
        message = CLIENT.messages.create(**FIELDS, tool_choice={"type": "any", "disable_parallel_tool_use": True})
        self.assertEqual(message.stop_reason, "tool_use")
        used = [block for block in message.content if block.type == "tool_use"]
        self.assertEqual(used[0].name, "get_weather")
        self.assertIn(used[0].input["unit"], ("celsius", "fahrenheit"))
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "rain"} for block in used]
        turns = [QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        answer = CLIENT.messages.create(**(FIELDS | {"messages": turns}), tool_choice={"type": "none"})
        self.assertEqual([block.type for block in answer.content], ["text"])
        counted = CLIENT.messages.count_tokens(model=MODEL, messages=turns, tools=[TOOL])
        self.assertGreater(counted.input_tokens, CLIENT.messages.count_tokens(model=MODEL, messages=turns).input_tokens)

    def test_a_named_tool_streams_its_input(self):
        kinds, pieces = [], ""
        with CLIENT.messages.stream(**FIELDS, tool_choice={"type": "tool", "name": "get_weather"}) as stream:
            for event in stream:
                kinds.append(event.type)
                if event.type == "input_json":
                    pieces += event.partial_json
            message = stream.get_final_message()
        self.assertIn("input_json", kinds)
        self.assertEqual(json.loads(pieces), message.content[0].input)
        self.assertEqual((len(message.content), message.stop_reason), (1, "tool_use"))

    def test_auto_is_text_or_calls(self):
        message = CLIENT.messages.create(**FIELDS)
        self.assertTrue(all(block.type in ("text", "tool_use") for block in message.content))

    def test_structured_output(self):
        output = {"format": {"type": "json_schema", "schema": SCHEMA}}
        fields = {name: value for name, value in FIELDS.items() if name != "tools"}
        message = CLIENT.messages.create(**fields, extra_body={"output_config": output})
        self.assertIn(json.loads(message.content[0].text)["unit"], ("celsius", "fahrenheit"))

    def test_tools_that_the_server_would_have_to_run_are_refused(self):
        with self.assertRaises(anthropic.BadRequestError):
            CLIENT.messages.create(**(FIELDS | {"tools": [{"type": "bash_20250124", "name": "bash"}]}))


if __name__ == "__main__":
    unittest.main()
