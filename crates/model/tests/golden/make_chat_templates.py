"""Render chat templates with `transformers`, whose Jinja environment published templates are written for.

The templates in chat-templates/ are in the style of published ones and use the same constructs; README.md tells where
each comes from. Output: chat-templates.json, a list of cases.
"""

import json
from pathlib import Path

import jinja2
import transformers
from tokenizers import Tokenizer, models

HERE = Path(__file__).parent

# Template: tokens for the beginning and the end of a sequence, and the cases to render beyond the ones for all.
TEMPLATES = {
    "chatml": ("<|im_start|>", "<|im_end|>", []),
    "llama2": ("<s>", "</s>", ["no_turns_taken", "unknown_role"]),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", ["tools", "one_call", "two_calls", "structured_result", "only_system"]),
    "mistral-tools": ("<s>", "</s>", ["tools", "two_calls", "no_turns_taken", "unknown_role", "call_without_id"]),
    "qwen2-tools": (None, "<|im_end|>", ["tools", "one_call", "two_calls"]),
    "qwen3-thinking": (None, "<|im_end|>", ["one_call", "two_calls", "thinking", "thoughts", "reasoning", "no_thinking"]),
    "gemma3": ("<bos>", "<eos>", ["parts", "no_turns_taken", "number"]),
    "phi3": ("<s>", "<|endoftext|>", ["empty_system"]),
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ["thoughts", "one_call", "two_calls", "two_systems"]),
    "zephyr": ("<s>", "</s>", ["unknown_role"]),
    "harmony": (None, "<|return|>", ["tools", "one_call", "low_effort"]),
    "generation-tag": (None, "<|im_end|>", []),
    "white-space": (None, None, []),
    "python-strings": (None, None, []),
    "python-dicts": (None, None, []),
    "python-values": (None, None, []),
    "jinja-filters": (None, None, []),
    "jinja-loops": (None, None, []),
    "jinja-json": (None, None, ["unicode"]),
}

CASES_FOR_ALL = ["user", "system", "turns", "turns_without_prompt", "empty", "unicode"]


def message(role: str, content=None, **more) -> dict:
    return dict(role=role, **({} if content is None else dict(content=content)), **more)


def call(name: str, identity: str | None = None, **arguments) -> dict:
    about = dict(id=identity) if identity else {}
    return dict(**about, type="function", function=dict(name=name, arguments=arguments))


def function(name: str, description: str, required: list[str], **properties) -> dict:
    parameters = dict(type="object", properties=properties, required=required)
    return dict(type="function", function=dict(name=name, description=description, parameters=parameters))


TOOLS = [
    function(
        "get_weather",
        "The weather at a place <now> & \"soon\".",
        ["city"],
        city=dict(type="string", description="Name of the city, e.g. Zürich"),
        unit=dict(type="string", enum=["celsius", "fahrenheit"], default="celsius"),
        days=dict(type="integer", default=1),
    ),
    function("roll", "Rolls dice.", [], sides=dict(type="array", items=dict(type="integer")), fair=dict(type="boolean", default=True)),
]  # fmt: skip
QUESTION = message("user", "What is the weather in Zürich?")
SUNNY = '{"sky": "sunny", "degrees": 21.5}'
TURNS = [
    message("system", "You are terse."),
    message("user", "Hello!"),
    message("assistant", "Hi."),
    message("user", "  How are you?\n"),
    message("assistant", "\nFine. "),
    message("user", "Good."),
]

# Name: messages, and whatever else is given to `apply_chat_template`.
CASES = {
    "user": dict(messages=[message("user", "Hello!")]),
    "system": dict(messages=[message("system", " You are a pirate. "), message("user", "Ahoy!")]),
    "turns": dict(messages=TURNS),
    "turns_without_prompt": dict(messages=TURNS[:-1], add_generation_prompt=False),
    "empty": dict(messages=[message("system", ""), message("user", "")]),
    "unicode": dict(messages=[message("user", " <b>Grüße</b> & 你好 😀\t\"quoted\" 'text' \\n {{ no }} e\u0301\u2028a! ")]),
    "tools": dict(messages=[message("system", "Use tools."), QUESTION], tools=TOOLS),
    "one_call": dict(
        messages=[
            QUESTION,
            message("assistant", "", tool_calls=[call("get_weather", "abcdefgh1", city="Zürich", days=3)]),
            message("tool", SUNNY, name="get_weather", tool_call_id="abcdefgh1"),
        ],
        tools=TOOLS,
    ),
    "two_calls": dict(
        messages=[
            message("system", "Use tools."),
            QUESTION,
            message(
                "assistant",
                "Let me see.",
                tool_calls=[call("get_weather", "abcdefgh1", city="Zürich"), call("roll", "abcdefgh2", sides=[6, 6], fair=True)],
            ),
            message("tool", SUNNY, name="get_weather", tool_call_id="abcdefgh1"),
            message("tool", "[3, 5]", name="roll", tool_call_id="abcdefgh2"),
            message("assistant", "Sunny."),
            message("user", "Thanks."),
        ],
        tools=TOOLS,
    ),
    "structured_result": dict(
        messages=[QUESTION, message("assistant", "", tool_calls=[call("roll")]), message("tool", dict(dice=[3, 5], fair=None))]
    ),
    "call_without_id": dict(messages=[QUESTION, message("assistant", "", tool_calls=[call("roll")])]),
    "only_system": dict(messages=[message("system", "Use tools.")], tools=TOOLS),
    "two_systems": dict(messages=[message("system", "One."), message("user", "Hi"), message("system", "Two.")]),
    "empty_system": dict(messages=[message("system", ""), message("user", "Hi")], add_generation_prompt=False),
    "no_turns_taken": dict(messages=[message("user", "One"), message("user", "Two")]),
    "unknown_role": dict(messages=[message("user", "One"), message("robot", "Two")]),
    "parts": dict(
        messages=[
            message("system", [dict(type="text", text="Look closely.")]),
            message("user", [dict(type="image"), dict(type="text", text=" What is this? ")]),
        ]
    ),
    "number": dict(messages=[message("user", 42)]),
    "thinking": dict(messages=[QUESTION], extra=dict(enable_thinking=True)),
    "no_thinking": dict(messages=[QUESTION], extra=dict(enable_thinking=False)),
    "thoughts": dict(
        messages=[
            message("user", "2 + 2?"),
            message("assistant", "<think>\nEasy.\n</think>\n\n4"),
            message("user", "3 + 3?"),
            message("assistant", "<think>\n\nStill easy.\n\n</think>\n\n6"),
        ],
        add_generation_prompt=False,
    ),
    "reasoning": dict(
        messages=[message("user", "2 + 2?"), message("assistant", "\n4", reasoning_content="\nEasy.\n")],
        add_generation_prompt=False,
    ),
    "low_effort": dict(messages=[QUESTION], extra=dict(reasoning_effort="LOW", current_date="2026-11-30")),
}  # fmt: skip

# These render little of the messages: one case is enough.
CONSTRUCTS = ["python-dicts", "python-values", "jinja-loops", "jinja-json"]

# Given to every llama3 case, so that the outcome does not depend on the day.
DATE = dict(date_string="30 Nov 2026")


def render(template_name: str, case_name: str) -> dict:
    bos_token, eos_token, _ = TEMPLATES[template_name]
    case = CASES[case_name]
    template = f"chat-templates/{template_name}.jinja"
    extra = case.get("extra", {}) | (DATE if template_name == "llama3" else {})
    out = dict(
        name=f"{template_name}/{case_name}",
        template=template,
        bos_token=bos_token,
        eos_token=eos_token,
        messages=case["messages"],
        tools=case.get("tools"),
        add_generation_prompt=case.get("add_generation_prompt", True),
        extra=extra,
    )
    tokens = {key: out[key] for key in ("bos_token", "eos_token") if out[key]}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **tokens)
    try:
        out["expected"] = tokenizer.apply_chat_template(
            out["messages"],
            tools=out["tools"],
            chat_template=(HERE / template).read_text(encoding="utf-8"),
            add_generation_prompt=out["add_generation_prompt"],
            tokenize=False,
            **extra,
        )
    except jinja2.exceptions.TemplateError as error:
        out["error"] = str(error)
    return out


def main() -> None:
    cases = []
    for name, (_, _, more) in TEMPLATES.items():
        cases += [render(name, case) for case in (CASES_FOR_ALL[:1] if name in CONSTRUCTS else CASES_FOR_ALL) + more]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / "chat-templates.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
