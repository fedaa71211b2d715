"""LangChain's ChatOpenAI against a running server.

    ROPEWALK_URL=http://127.0.0.1:8080 python langchain_client.py

Any model will do: nothing here depends on what it says.
"""

import asyncio
import unittest
from enum import Enum

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from running import MODEL, URL

MESSAGES = [SystemMessage("You are brief."), HumanMessage("Name the planets.")]


class Size(str, Enum):
    SMALL = "small"
    LARGE = "large"


class Planet(BaseModel):
    """A planet."""

    size: Size
    has_rings: bool


@tool
def weather(city: Size) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def chat(**fields) -> ChatOpenAI:
    fields = {"model": MODEL, "temperature": 0, "max_tokens": 24} | fields
    return ChatOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120, **fields)


class Chat(unittest.TestCase):
    def test_invoke(self):
        answer = chat().invoke(MESSAGES)
        self.assertIsInstance(answer, AIMessage)
        self.assertTrue(answer.content)
        self.assertIn(answer.response_metadata["finish_reason"], ("stop", "length"))
        self.assertGreater(answer.usage_metadata["input_tokens"], 0)
        self.assertGreater(answer.usage_metadata["output_tokens"], 0)

    def test_stream_adds_up_to_the_whole_answer(self):
        chunks = list(chat(stream_usage=True).stream(MESSAGES))
        whole = chat().invoke(MESSAGES)
        self.assertEqual("".join(chunk.content for chunk in chunks), whole.content)
        used = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        self.assertEqual(sum(it["output_tokens"] for it in used), whole.usage_metadata["output_tokens"])

    def test_batch_answers_as_one_by_one(self):
        questions = ["Name a river.", "Name a mountain.", "Name a sea."]
        model = chat()
        together = [answer.content for answer in model.batch(questions)]
        self.assertEqual(together, [model.invoke(question).content for question in questions])

    def test_asynchronous(self):
        answer = asyncio.run(chat().ainvoke(MESSAGES))
        self.assertEqual(answer.content, chat().invoke(MESSAGES).content)

    def test_logprobs(self):
        answer = chat(logprobs=True, top_logprobs=2).invoke(MESSAGES)
        self.assertEqual(len(answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]), 2)


class Forms(unittest.TestCase):
    def test_structured_output_by_a_schema(self):
        for method in ("json_schema", "function_calling"):
            planet = chat(max_tokens=128).with_structured_output(Planet, method=method).invoke("Describe Saturn.")
            self.assertIsInstance(planet, Planet, method)

    def test_a_tool_is_called_and_its_result_is_told(self):
        model = chat(max_tokens=128)
        question = HumanMessage("How is the weather in the small city?")
        called = model.bind_tools([weather], tool_choice="weather", strict=True).invoke([question])
        self.assertEqual([call["name"] for call in called.tool_calls], ["weather"])
        call = called.tool_calls[0]
        result = weather.invoke(call["args"])
        answer = model.bind_tools([weather]).invoke([question, called, ToolMessage(result, tool_call_id=call["id"])])
        self.assertIsInstance(answer, AIMessage)

    def test_a_call_is_streamed(self):
        model = chat(max_tokens=128).bind_tools([weather], tool_choice="weather", strict=True)
        whole = None
        for chunk in model.stream("How is the weather in the small city?"):
            whole = chunk if whole is None else whole + chunk
        self.assertEqual([call["name"] for call in whole.tool_calls], ["weather"])
        self.assertIn(whole.tool_calls[0]["args"]["city"], ("small", "large"))


class Errors(unittest.TestCase):
    def test_refusals_keep_their_meaning(self):
        with self.assertRaises(openai.NotFoundError):
            chat(model="no-such-model").invoke("Hi")
        with self.assertRaises(openai.BadRequestError) as raised:
            chat(temperature=5).invoke("Hi")
        self.assertEqual((raised.exception.param, raised.exception.code), ("temperature", "invalid_value"))


if __name__ == "__main__":
    unittest.main()
