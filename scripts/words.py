"""Counts the words of the documentation, and finds long sentences and words that a page should not use.

python scripts/words.py            words per page
python scripts/words.py --check    also exits with 1 if a rule is broken

Prose is what remains without code, tables, printed results, HTML comments and the addresses of links.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "docs/*.md", "results/README.md", "benchmarks/README.md", "CHANGELOG.md"),
    *("papers/README.md", "papers/*/README.md"),
)
MOST_WORDS = {"README.md": 500, "CHANGELOG.md": 1000, "benchmarks/README.md": 1200}
MOST_IN_ALL, LONGEST_SENTENCE = 14_000, 25
AVOIDED = (
    r"mended|anew|once more|of ours|one's own|but for|in vain|told of|house|rooms?|pictures?|"
    r"lies? (?:in|below|beside|beyond)|stands? (?:in|for itself|beside)|goes on|go on|is asked|was said|nobody|beside"
)
# A number or sentence that its writer has not filled in: MINUTES, W_AND_B_COST, TODO.
PLACEHOLDER = r"[A-Z]{2,}_[A-Z_]+|[A-Z]{7,}|TODO|FIXME|XXX"
# Pages with a word of the lists that is correct there.
ALLOWED = {("docs/trunks.md", "electra"), ("benchmarks/README.md", "roadmap")}


def prose(text: str) -> list[str]:
    """The paragraphs of a page, each one line."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1|<!-- printed -->.*?<!-- -->|<!--.*?-->", "\n", text, flags=re.M | re.S)
    text = re.sub(r"^(?:\|.*| {4,}\S.*)$", "", text, flags=re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", text)
    return [joined for block in blocks if (joined := " ".join(block.split()).lstrip("#-* "))]


def commands(text: str) -> list[str]:
    """The lines of a page's blocks of commands, continued ones joined, and the commands that a sentence names."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    blocks += [
        re.sub("^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    \S.*\n(?:^ {4,}.*\n)*)+", plain, re.M)
    ]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    named = re.findall(r"`((?:levelfield|make|python) [^`]*)`", plain)
    return lines + [" ".join(line.replace("[", "").replace("]", "").split()) for line in named]


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph; inline code is one word."""
    plain = re.sub(r"`[^`]+`", "code", paragraph)
    return re.split(r"(?<=[.!?:;])\s+", plain)


def broken(page: str, paragraphs: list[str]) -> list[str]:
    """A line for each broken rule on a page."""
    found = []
    for paragraph in paragraphs:
        for sentence in sentences(paragraph):
            if len(sentence.split()) > LONGEST_SENTENCE:
                found.append(f"{page}: {len(sentence.split())} words: {sentence}")
        plain = re.sub(r"`[^`]+`", "code", paragraph)
        words = re.finditer(rf"\b(?:{AVOIDED})\b", plain, re.IGNORECASE)
        for match in [*words, *re.finditer(rf"\b(?:{PLACEHOLDER})\b", plain)]:
            if (page, match[0].lower()) not in ALLOWED:
                found.append(f"{page}: '{match[0]}': {paragraph[:80]}")
    return found


def main() -> int:
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    counts, faults = {}, []
    for path in pages:
        page = str(path.relative_to(ROOT))
        paragraphs = prose(path.read_text(encoding="utf-8"))
        counts[page] = sum(len(paragraph.split()) for paragraph in paragraphs)
        faults += broken(page, paragraphs)
        if counts[page] > MOST_WORDS.get(page, counts[page]):
            faults.append(f"{page}: {counts[page]} words, at most {MOST_WORDS[page]}")
    counts["all"] = sum(number for page, number in counts.items() if page != "CHANGELOG.md")
    if counts["all"] > MOST_IN_ALL:
        faults.append(f"all pages: {counts['all']} words, at most {MOST_IN_ALL}")
    check = "--check" in sys.argv[1:]
    print(*faults if check else [f"{number:6,} {page}" for page, number in counts.items()], sep="\n")
    return int(check and bool(faults))


if __name__ == "__main__":
    sys.exit(main())
