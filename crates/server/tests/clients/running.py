"""The server under test, named by the environment variable ROPEWALK_URL (`http://127.0.0.1:8080`), and its model."""

import json
import os
import urllib.request

URL = os.environ["ROPEWALK_URL"].rstrip("/")


def get(path: str) -> dict:
    with urllib.request.urlopen(URL + path, timeout=10) as answer:
        return json.load(answer)


def post(path: str, body: dict) -> dict:
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


MODEL = get("/v1/models")["data"][0]["id"]
CONTEXT = get("/v1/models")["data"][0]["max_model_len"]
