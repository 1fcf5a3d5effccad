"""Shell commands of pages in lines that a desktop shows whole; other code is wrapped by the style sheet."""

import re
import shlex

WIDTH = 76
"""Characters that fit between both columns of navigation."""
_BLOCK = re.compile(r"(^```(?:bash|sh)\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?P<command>.*?\S) +(?P<comment># .*)")


def wrapped(markdown: str) -> str:
    """A page whose shell blocks have no line of more than WIDTH characters, where a line can be broken."""
    return _BLOCK.sub(lambda block: block[1] + _lines(block[2]) + block[3], markdown)


def _lines(block: str) -> str:
    return "".join(f"{each}\n" for line in block.splitlines() for each in _line(line))


def _line(line: str) -> list[str]:
    """A line, its comment above it and its command continued, if it is too long."""
    if len(line) <= WIDTH:
        return [line]
    found = _COMMENT.fullmatch(line)
    if found and _whole(found["command"]):
        return [found["comment"], *_line(found["command"])]
    parts = _words(line)
    indent = " " * (len(line) - len(line.lstrip()))
    lines = [indent + parts[0]] if parts else [line]
    for word in parts[1:]:
        if word == "\\":
            break
        if len(f"{lines[-1]} {word} \\") <= WIDTH or lines[-1].endswith(f"{indent}    "):
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"{indent}    {word}")
    if line.endswith("\\"):
        lines[-1] += " \\"
    return lines


def _whole(command: str) -> bool:
    """Whether no quotation is open at the end of a command."""
    try:
        shlex.split(command.rstrip("\\"))
    except ValueError:
        return False
    return True


def _words(line: str) -> list[str]:
    """Words as they are written, a quotation with its spaces being one; the whole line where it is open."""
    return re.findall(r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'])+", line) if _whole(line) else [line.strip()]
