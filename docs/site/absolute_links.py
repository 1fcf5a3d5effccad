"""README.md for a package index, where relative links lead nowhere: they become absolute.

    python docs/site/absolute_links.py https://HOST/OWNER/REPOSITORY TAG

rewrites README.md in the checkout that a release is built from. Pictures are named by their raw form.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str, repository: str, tag: str) -> str:
    """A page's relative links as links into a repository at a tag."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({repository.rstrip('/')}/{kind}/{tag}/{match[3]})"

    return LINK.sub(link, text)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[1].startswith("https://"):
        sys.exit(__doc__)
    README.write_text(absolute(README.read_text(), *sys.argv[1:]))
