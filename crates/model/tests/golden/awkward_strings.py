"""Two hundred strings that tokenizers get wrong, each for a reason that its group names."""

CONTRACTIONS = [
    "it's", "IT'S", "It'S", "don't", "DON'T", "we'll", "WE'LL", "We'Ll", "they've", "THEY'VE", "I'm", "I'M", "you'd",
    "YOU'D", "we're WE'RE We'rE", "'s't're've'm'll'd", "'S'T'RE'VE'M'LL'D", "rock'n'roll", "O'Neill's", "it’s don’t",
    " 'tis 'twas", "'''", "x'sy", "''s", "l'été d'Août",
]  # fmt: skip

DIGITS = [
    "0", "7", "10", "42", "100", "999", "1234", "12345", "123456", "1234567", "12345678901234567890", "3.14159",
    "1,000,000.00", "0x1F600", "1e-10", "2026-11-30T10:47:00Z", "a1b2c3", "v1.2.3-rc4", "№42", "x² + y³ = ½",
    "١٢٣٤٥٦", "१२३४", "１２３４５", "Ⅻ ⅷ", "㊿ ⑳", " 1 22 333 4444 55555", "127.0.0.1:8080", "+1 (555) 010-9999",
]  # fmt: skip

WHITESPACE = [
    " ", "  ", "   ", "    ", "        ", " " * 15, " " * 16, " " * 17, " " * 64, "\t", "\t\t", "\t\t\t\t", " \t \t",
    "\n", "\n\n", "\n\n\n", "\n\n\n\n\n\n\n", "\r", "\r\n", "\r\n\r\n", "\n\r\n\r", " \n", "\n ", "  \n  \n  ", "a ",
    " a", "  a", "   a", "a  b", "a   b", "a\nb", "a\n\nb", "a \n b", "a\r\nb\r\n", "a\t\tb", "   a   ", "a\n    b",
    "a:\n\n\n  b", "trailing   ", "\n\n  leading", "x \n\n\n y", "\u000b\u000c", "a\u000bb",
]  # fmt: skip

UNICODE_SPACES = [
    "a\u00a0b", "a\u00a0\u00a0b", "\u3000全角\u3000スペース", "a\u2003b\u2009c", "a\u2028b\u2029c", "a\u200bb",
    "\ufeffbom", "a\u202fb\u205fc", "a\u1680b", "a\u0085b", "\u2060word\u2060joiner", "soft\u00adhyphen",
]  # fmt: skip

CONTROL = [
    "\u0000", "a\u0000b", "\u0001\u0002\u0003", "\u001b[31mred\u001b[0m", "\u007f", "bell\u0007", "\u0080\u009f",
    "\u001c\u001d\u001e\u001f", "\u200e\u200f\u202a\u202c", "\ufffe\uffff", "\ufffd", "\U0010ffff",
]  # fmt: skip

EMOJI = [
    "😀", "😀😀😀", "Hi 😀!", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇨🇭🇯🇵🇧🇷", "❤️", "❤", "1️⃣2️⃣", "🧑🏿‍🚀 in space", "a😀b👍c", " 🚀 ",
    "☃☂☀", "©®™", "→ ⇒ ∑ ∫ √ ≠ ≤", "♠♥♦♣", "▁", "▁▁a", "a▁b", "Ġ", "ĠaĊ", "𝕳𝖊𝖑𝖑𝖔",
]  # fmt: skip

SCRIPTS = [
    "你好，世界！", "中文 and English 混排", "我有3个苹果和12个橙子。", "日本語のテキスト", "カタカナとひらがな", "東京タワー2026年",
    "한국어 텍스트", "조선말", "Привет, мир!", "СЪЕШЬ ЕЩЁ", "Ελληνικά", "שלום עולם", "مرحبا بالعالم", "اَلْعَرَبِيَّةُ", "สวัสดีชาวโลก",
    "ภาษาไทยไม่มีช่องว่าง", "नमस्ते दुनिया", "বাংলা", "தமிழ்", "ქართული", "հայերեն", "አማርኛ", "ខ្មែរ", "မြန်မာ", "བོད་སྐད།", "Tiếng Việt",
    "ǅ ǈ ǲ ŉ ß ẞ", "İstanbul ıĞüŞ", "ﬁ ﬂ ﬃ", "ｆｕｌｌ　ｗｉｄｔｈ", "𐐀𐐁𐐨", "㐀㐁𠀀𠀁", "㍿㌔㎏",
]  # fmt: skip

COMBINING = [
    "e\u0301", "\u00e9", "cafe\u0301 café", "A\u030angstro\u0308m", "\u0301", "a\u0301\u0302\u0303\u0304", "n\u0303 ñ",
    "Z\u0351\u036b\u0343a\u030a\u0363l\u0364g\u0367o\u0369", "q\u0307\u0323 q\u0323\u0307", "\u1100\u1161\u11a8",
]  # fmt: skip

CODE = [
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
    "fn main() {\n    println!(\"{:?}\", vec![1, 2, 3]);\n}",
    "if a:\n        if b:\n                pass",
    "{\"key\": [1, 2.5, null, true], \"a\\nb\": \"\\u00e9\"}",
    "<div class=\"x\">&nbsp;<br/></div>",
    "SELECT * FROM t WHERE id != 42 AND name LIKE '%x%';",
    "x = y if z else w;a+=b<<=c>>>d",
    "#include <stdio.h>\r\nint main(void)\r\n{\r\n  return 0;\r\n}\r\n",
    "$HOME/.config && echo \"${VAR:-default}\" | grep -E '^[a-z]+$' > /dev/null 2>&1",
    "camelCaseString snake_case_string SCREAMING_CASE kebab-case PascalCaseHTTPServer",
    "```rust\nlet x = 1;\n```\n\n- item\n  - nested\n",
    "https://example.org/path/to?query=1&other=two%20words#fragment",
    "user.name+tag@sub.example.com",
    "\\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{n} x_i^2",
    "C:\\Users\\name\\file.txt //server/share",
    "!!! ??? ... --- === ~~~ *** ### @@@ %%% &&& ((( ))) [[[ ]]] {{{ }}}",
    "«quoted» “curly” ‘single’ „low“ … – —",
]

WORDS = [
    "", "a", "Hello world", "Hello, world!", "hello", " hello", "HELLO WORLD", "hElLo WoRlD", "Ropewalk",
    "straightforwardly unreachable", " straightforward", "antidisestablishmentarianism", "a" * 100, "ab" * 60, "xyz" * 40,
    "Donaudampfschifffahrtsgesellschaftskapitän", "The quick brown fox jumps over the lazy dog.", "end.\n\nBegin",
    "word.Word,word;word:word", "\ue000\ue001\uf8ff", "mixed中文English한국어русский123",
    "Alice was beginning to get very tired of sitting by her sister on the bank,",
]  # fmt: skip

SPECIAL_TEXTS = [
    "<|endoftext|>", "a<|endoftext|>b", "<|im_start|>user\nhi<|im_end|>\n", " <|im_end|> ", "<|im_end|><|im_end|>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "<s>hi</s>", "hi</s> there", "<s>",
    "[INST] hi [/INST]", "<bos><start_of_turn>user\nhi<end_of_turn>\n", "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜>",
    "<|start|>user<|message|>hi<|end|>", "<unk>", "<pad>", "<0x41>", "<tool_call>{}</tool_call>", "<think>\n\n</think>",
    "<|endoftext", "<|im_start |>", "a <table> b", "text <extra_id_0> and <extra_id_1>.", "</s></s>",
]  # fmt: skip

AWKWARD_STRINGS = list(
    dict.fromkeys(
        CONTRACTIONS + DIGITS + WHITESPACE + UNICODE_SPACES + CONTROL + EMOJI + SCRIPTS + COMBINING + CODE + WORDS
        + SPECIAL_TEXTS
    )
)  # fmt: skip
