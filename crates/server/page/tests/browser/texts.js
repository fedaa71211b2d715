// Texts that scripted answers consist of.

/** Everything that text could do to a page that takes it for HTML. */
export const HOSTILE = `<script>hacked = 1; alert(1)</script>
<img src="x" onerror="hacked = 2; alert(2)"> <svg onload="hacked = 3"></svg>
<iframe srcdoc="<script>parent.hacked = 4</script>"></iframe>
<a href="javascript:hacked = 5">click</a> <style>body { display: none }</style>

![picture](https://images.invalid/pixel.png) ![](http://images.invalid/other.png "title")
[click](javascript:hacked=6) [click](JaVaScRiPt:hacked=7) [click](data:text/html,<script>hacked=8</script>)
[click](https://links.invalid/"onmouseover="hacked=9) <https://links.invalid/auto> <javascript:hacked=10>
[**bold** <b onclick="hacked = 11">link</b>](https://links.invalid/bold)

| <script>hacked = 12</script> | ![cell](https://images.invalid/cell.png) |
|---|---|
| <img src=x onerror=hacked=13> | [cell](vbscript:hacked=14) |

> <object data="x"></object>
> - <embed src="x">
>   # <form action="https://links.invalid/"><input name="a"></form>

\`\`\`"><script>hacked = 15</script>
</code></pre><script>hacked = 16</script>
\`\`\`

${">".repeat(500)} deep
${"- ".repeat(500)} deep
${"**_".repeat(500)} deep
`;

/** Everything that the page can show. */
export const RICH = `# Finding prime numbers

A **prime** has *exactly* two divisors. The sieve of [Eratosthenes](https://en.wikipedia.org/wiki/Eratosthenes) finds all of
them below a limit, in \`O(n log log n)\` steps.

\`\`\`python
def primes(limit: int) -> list[int]:
    """All primes below limit."""
    sieve = bytearray([1]) * limit
    sieve[0:2] = b"\\0\\0"
    for number in range(2, int(limit ** 0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit, number)))
    return [number for number, prime in enumerate(sieve) if prime]
\`\`\`

## How it compares

| Method | Time | Memory |
|:-------|-----:|:------:|
| Trial division | 4.1 s | none |
| Sieve | 0.02 s | one byte a number |
| Segmented sieve | 0.03 s | ~~much~~ little |

1. Write down all numbers.
2. Cross out
   - the multiples of 2,
   - the multiples of 3, and so on.
3. What is left is prime.

> Mathematics is the queen of the sciences.

- [x] explained
- [ ] proved

---

The sum \\(\\sum_{p} 1/p\\) over all primes diverges.
`;
