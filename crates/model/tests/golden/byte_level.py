"""The alphabet of byte-level BPE: each byte as a printable character, as GPT-2 introduced it."""


def byte_characters() -> list[str]:
    """The character that stands for each byte 0 to 255: itself where printable, else the next one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level_vocabulary(merges: list[str]) -> list[str]:
    """All 256 byte tokens, then the outcome of each merge ("left right")."""
    tokens = byte_characters()
    for merge in merges:
        left, right = merge.split(" ")
        assert left in tokens and right in tokens, f"merge {merge!r} joins tokens that do not exist before it"
        tokens.append(left + right)
    assert len(set(tokens)) == len(tokens), "two merges give the same token"
    return tokens
