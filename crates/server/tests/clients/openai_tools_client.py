"""Structured output and tools through the official OpenAI client, against a running server.

    ROPEWALK_URL=http://127.0.0.1:8080 python openai_tools_client.py

Any model will do: constraints see to it that answers have the form that is asked for.
"""

import json
import unittest
from typing import Literal

import openai
from pydantic import BaseModel
from running import MODEL, URL

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=300)
MESSAGES = [{"role": "user", "content": "What is the weather in Bonn?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS, "strict": True}}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
FIELDS = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "temperature": 0}


class Report(BaseModel):
    sky: Literal["clear", "cloudy"]
    degrees: int


class Structured(unittest.TestCase):
    def test_parse(self):
        answer = CLIENT.chat.completions.parse(**FIELDS, response_format=Report)
        self.assertIn(answer.choices[0].message.parsed.sky, ("clear", "cloudy"))
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_parse_of_a_response(self):
        answer = CLIENT.responses.parse(model=MODEL, input="The weather?", temperature=0, max_output_tokens=200, text_format=Report)
        self.assertIsInstance(answer.output_parsed.degrees, int)

    def test_json_object(self):
        stream = CLIENT.chat.completions.create(
            **(FIELDS | {"max_tokens": 300}), response_format={"type": "json_object"}, stream=True
        )
        chunks = [chunk.choices[0] for chunk in stream]
        text = "".join(choice.delta.content or "" for choice in chunks)
        if chunks[-1].finish_reason == "stop":
            self.assertIsInstance(json.loads(text), dict)
        self.assertTrue(text.lstrip().startswith("{"))

    def test_choice_and_regex(self):
        chosen = CLIENT.completions.create(model=MODEL, prompt="Yes or no?", extra_body={"guided_choice": ["yes", "no"]})
        self.assertIn(chosen.choices[0].text, ("yes", "no"))
        extra = {"structured_outputs": {"regex": "[A-Z]{3}-[0-9]{2}"}}
        matched = CLIENT.chat.completions.create(**FIELDS, extra_body=extra)
        self.assertRegex(matched.choices[0].message.content, "^[A-Z]{3}-[0-9]{2}$")

    def test_bad_schemas(self):
        schema = {"type": "object", "properties": {"x": {"not": {"type": "null"}}}}
        described = {"name": "x", "strict": True, "schema": schema}
        with self.assertRaises(openai.BadRequestError) as raised:
            CLIENT.chat.completions.create(**FIELDS, response_format={"type": "json_schema", "json_schema": described})
        self.assertIn("#/properties/x", raised.exception.body["message"])


class Tools(unittest.TestCase):
    def check(self, call, name="get_weather"):
        self.assertEqual(call.function.name, name)
        arguments = json.loads(call.function.arguments)
        self.assertIn(arguments["unit"], ("celsius", "fahrenheit"))

    def test_required_and_named(self):
        fields = FIELDS | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        answer = CLIENT.chat.completions.create(**fields).choices[0]
        self.assertEqual((answer.finish_reason, answer.message.content), ("tool_calls", None))
        self.check(answer.message.tool_calls[0])
        named = {"type": "function", "function": {"name": "get_weather"}}
        answer = CLIENT.chat.completions.create(**FIELDS, tools=[CLOCK, WEATHER], tool_choice=named).choices[0]
        self.assertEqual(len(answer.message.tool_calls), 1)
        self.check(answer.message.tool_calls[0])

    def test_a_turn_with_a_result(self):
        fields = FIELDS | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        called = CLIENT.chat.completions.create(**fields).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in called.tool_calls]
        messages = MESSAGES + [called.model_dump(exclude_none=True)] + results
        answer = CLIENT.chat.completions.create(**(FIELDS | {"messages": messages}), tools=[WEATHER], tool_choice="none")
        self.assertIsNone(answer.choices[0].message.tool_calls)
        self.assertTrue(answer.choices[0].message.content)

    def test_auto_is_text_or_calls(self):
        choice = CLIENT.chat.completions.create(**FIELDS, tools=[WEATHER, CLOCK]).choices[0]
        self.assertTrue(choice.message.content or choice.message.tool_calls)

    def test_streamed_arguments(self):
        fields = FIELDS | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        with CLIENT.chat.completions.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            answer = stream.get_final_completion()
        self.assertIn("tool_calls.function.arguments.delta", kinds)
        self.assertIn("tool_calls.function.arguments.done", kinds)
        self.check(answer.choices[0].message.tool_calls[0])

    def test_responses(self):
        tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
        fields = {"model": MODEL, "tools": [tool], "temperature": 0, "max_output_tokens": 200, "parallel_tool_calls": False}
        first = CLIENT.responses.create(input="What is the weather in Bonn?", tool_choice="required", **fields)
        calls = [item for item in first.output if item.type == "function_call"]
        self.assertEqual(calls[0].name, "get_weather")
        json.loads(calls[0].arguments)
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
        second = CLIENT.responses.create(previous_response_id=first.id, input=outputs, tool_choice="none", **fields)
        self.assertTrue(second.output_text)
        events = CLIENT.responses.create(input="The weather?", tool_choice="required", stream=True, **fields)
        kinds = [event.type for event in events]
        self.assertIn("response.function_call_arguments.delta", kinds)
        self.assertEqual(kinds[-1], "response.completed")


if __name__ == "__main__":
    unittest.main()
