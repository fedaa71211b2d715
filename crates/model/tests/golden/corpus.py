"""The text that the tiny tokenizers are trained on: some of everything, much of it on one line.

English comes from text.txt; the rest is here, so that the merges reach across letters, digits, punctuation, spaces and
line ends, and into scripts of two, three and four bytes a character.
"""

from pathlib import Path

ENGLISH_CHARACTERS = 9_000

SAMPLES = """\
def main():
    for index in range(100):
        if index % 2 == 0:
            print("index", index)
        else:
            return [index, index + 1, index * 2]

    while True:
        value = self.value.get("key", None)
        raise ValueError(f"bad value: {value!r}")
fn main() {
    let mut values: Vec<u32> = Vec::new();
    for value in values.iter() { println!("{value}"); }
}
if (a == b && c != d || !e) { return a[i] + b[j] - c->d; } // comment
{"id": 1234, "name": "value", "list": [1, 2, 3], "next": null, "ok": true}
SELECT name, value FROM table WHERE id = 100 AND name != 'value';
https://example.org/index.html?id=1234&name=value#top
100 200 300 1000 2000 2026 1999 123 456 789 1234 12345 3.14 2.5 0.001 50% $100 1,000 10:30 12:00
1 22 333 4444 55555 666666 00 000 0000 11 111 12 13 14 15 16 17 18 19 20 99 999
it's don't we'll they've I'm you'd we're IT'S DON'T WE'LL THEY'VE I'M YOU'D WE'RE he's she's that's
HELLO WORLD THE AND FOR CamelCase HttpServer myVariableName MAX_VALUE snake_case_name __init__
...!!! ??? -- --- == === => -> <= >= != && || :: // /* */ () [] {} <> "" '' `` ## ** __
中文分词测试，你好世界。我们今天去学校，明天回家。中国人民的语言文字。一二三四五六七八九十
日本語のテストです。これはひらがなとカタカナの文です。私は学生です。東京に行きます。
한국어 테스트 문장입니다. 안녕하세요 세계. 오늘은 학교에 갑니다.
Привет мир! Это русский текст для проверки. Мы сегодня идём в школу, а завтра домой. ПРИВЕТ МИР
Γειά σου κόσμε. Αυτό είναι ένα ελληνικό κείμενο.
مرحبا بالعالم. هذا نص عربي للاختبار. نحن نذهب إلى المدرسة اليوم.
שלום עולם. זה טקסט בעברית לבדיקה.
नमस्ते दुनिया। यह हिन्दी का पाठ है। हम आज विद्यालय जाते हैं।
สวัสดีชาวโลก นี่คือข้อความภาษาไทยสำหรับทดสอบ
Éléphant à l'école, garçon français où déjà été. Größe für Übung, schöne Straße. Año señor niño. Tiếng Việt.
😀😀 😃 👍 👍🏽 🚀 🎉 ❤️ ❤️ 👨‍👩‍👧 🇨🇭 🇯🇵 ✅ ✅ → → ← ≤ ≥ × ÷ ± ° § © ® ™ € £ ¥ “quoted” ‘single’ … – —
e\u0301 a\u0300 o\u0308 u\u0308 n\u0303 cafe\u0301 re\u0301sume\u0301 \u00a0 \u00a0 \u3000 \u3000
"""


def corpus() -> str:
    """The whole text; the samples count several times over, so that English does not take all merges."""
    english = (Path(__file__).parent / "text.txt").read_text(encoding="utf-8")[:ENGLISH_CHARACTERS]
    spaces = "".join("\n" * (1 + n % 3) + " " * n + "x" + "\t" * (n % 4) for n in range(20))
    return english + (SAMPLES + spaces) * 3


def lines() -> list[str]:
    return corpus().split("\n")
