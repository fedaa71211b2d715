"""Has a model write documents by the schemas of schemas.json through a running server, and holds them against the schemas.

    ROPEWALK_URL=http://127.0.0.1:8080 python documents.py [DOCUMENTS_PER_SCHEMA]

Ten documents by each of fifty schemas, unless told otherwise, at temperature 1 with seeds of their own.
"""

import json
import os
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema

URL = os.environ["ROPEWALK_URL"].rstrip("/")
DOCUMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
# Where a schema allows documents of any length, a small model may not find an end. Those that are cut off are none, and others
# are asked for instead, at most so often.
TOKENS_MAX = 600
TRIES = 8


def post(path: str, body: dict) -> dict:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def documents(entry: dict, model: str) -> tuple[list[str], int]:
    """What is wrong with documents by a schema, and how many were cut off."""
    schema, faults, whole, cut = entry["schema"], [], 0, 0
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = validator(schema, format_checker=validator.FORMAT_CHECKER)
    for seed in range(TRIES):
        for choice in answers(schema, model, seed * DOCUMENTS, DOCUMENTS - whole):
            text = choice["message"]["content"]
            if choice["finish_reason"] == "length":
                cut += 1
                continue
            whole += 1
            try:
                validator.validate(json.loads(text))
            except (ValueError, jsonschema.ValidationError) as error:
                faults.append(f"{entry['name']}: {str(error).splitlines()[0]}: {text[:300]}")
        if whole == DOCUMENTS:
            return faults, cut
    return faults + [f"{entry['name']}: {cut} documents had no end"], cut


def answers(schema: object, model: str, seed: int, count: int) -> list[dict]:
    question = f"Write a short document in JSON that is an example for this schema: {json.dumps(schema)}"
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": TOKENS_MAX,
        "temperature": 1,
        # Else a small model adds digits to a number without end.
        "frequency_penalty": 1,
        "n": count,
        "seed": seed,
        "structured_outputs": {"json": schema},
    }
    return post("/v1/chat/completions", body)["choices"]


def main() -> None:
    with urllib.request.urlopen(URL + "/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    schemas = json.loads((Path(__file__).parent / "schemas.json").read_text())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda entry: documents(entry, model), schemas))
    faults = [fault for faults, _ in found for fault in faults]
    total, cut = len(schemas) * DOCUMENTS, sum(cut for _, cut in found)
    print(f"{total - len(faults)} of {total} documents by {len(schemas)} schemas are valid; {cut} more had no end")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
