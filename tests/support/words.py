"""Count the signs of sentences that have to be read twice, in docstrings, comments and Markdown.

A sign is an opening without a subject (``Whether``, ``Of``), or a phrase that hides its noun (``what is kept``). A
match may be right in its place: a test bounds the signs of each 1,000 words, and does not forbid them.
"""

import re

NOT_A_SUBJECT = "What|Whether|Of|Who|Whose|Those|Which|How|Where|As|Not|None|Nothing|Nobody|One|By|Without|Else|Untold"
OPENING = re.compile(rf"({NOT_A_SUBJECT})\b")
PARTICIPLES = "made|kept|left|asked|wanted|given|read|taken|added|there|out|back|behind|before"
PHRASE = re.compile(
    "|".join(
        (
            r"\b(nobody|somebody|who (looks|asks|wants))\b",
            r"\b(anew|in vain|for good|once more|no more)\b",
            r"\b((is|are) told|(tells?|told) of|says? so)\b",
            rf"\b(what|that) (is|are|was|were|has|comes|goes|stands) ({PARTICIPLES})\b",
            r"\b(of (its|their|our|his|your) own|one's own)\b",
            r"\b(comes? (back|out|behind)|hand(s|ed)? on|lets? go of)\b",
            r"\bas (it|they) (is|are|was|were)\b",
            r"\b(written out|(behind|beside) (it|them|that))\b",
            r"(^|[.;:(] ?)(those|the ones?) (of|that|which|with|where)\b",
        )
    ),
    re.IGNORECASE,
)
DOCSTRING = re.compile(r'(?:\A|:\n)\s*r?"""(.*?)"""', re.DOTALL)
HASHES = re.compile(r"(?:^|\s)# (.*)$")
SLASHES = re.compile(r"(?:^|\s)///? ?(.*)$")


def comments(source, pattern):
    """Yield line and text of each block of adjacent comments."""
    text, first = [], 0
    for number, row in enumerate([*source.split("\n"), ""], 1):
        match = pattern.search(row)
        if match:
            first = first if text else number
            text.append(match.group(1))
        elif text:
            yield first, " ".join(text)
            text = []


def paragraphs(source):
    """Yield line and text of each paragraph of a page, without code, tables, headings and HTML."""
    source = re.sub(r"^ *```.*?^ *```", lambda code: "\n" * code.group().count("\n"), source, flags=re.M | re.S)
    source = re.sub(r"^ *[|#<].*$", "", source, flags=re.M)
    for block in re.finditer(r"(?:^.+\n?)+", source, re.M):
        yield source.count("\n", 0, block.start()) + 1, block.group()


def texts(path):
    """Yield line and text of each docstring, block of comments or paragraph of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from paragraphs(source)
        return
    if path.suffix == ".py":
        yield from ((source.count("\n", 0, text.start(1)) + 1, text.group(1)) for text in DOCSTRING.finditer(source))
    yield from comments(source, HASHES if path.suffix == ".py" else SLASHES)


def signs(path):
    """Return the number of words in the texts of a file, and line and description of each sign."""
    words, found = 0, []
    for line, text in texts(path):
        text = " ".join(re.sub(r"`+[^`]*`+", "CODE", text).split())
        words += len(text.split())
        openings = [OPENING.match(text)] if path.suffix != ".md" else []
        matches = [match.group().strip() for match in (*openings, *PHRASE.finditer(text)) if match]
        found += [(line, f"{match!r} in {text[:80]!r}") for match in matches]
    return words, found
