"""URLs of stores: secret parts, form in files and messages, and file systems."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from fsspec.core import url_to_fs

from ...base.errors import EngramError

SECRET = "***"  # Placeholder for secrets
_NAMED_USERS = ("ftp", "sftp", "ssh", "scp", "smb", "hdfs", "webhdfs", "github")
"""Protocols in which the text before @ is a user name; in others, it is a token."""
_LINK = re.compile(r"(?P<scheme>[\w+.-]+)://(?:(?P<user>[^/@]*)@)?(?P<place>[^?#]*)(?P<query>[?#].*)?", re.DOTALL)


def is_url(location: str) -> bool:
    """Whether `location` is a URL rather than a path."""
    return "://" in location


def redacted(url: str) -> str:
    """Remove tokens and signed queries from a URL, or from a chain of URLs (zip://x::https://host/y.zip)."""
    return "::".join(_redacted_link(link) for link in url.split("::"))


def first_line(problem: Exception, url: str) -> str:
    """Return an exception's type and first line, without the secrets of `url`."""
    return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}".replace(url, redacted(url))


@contextmanager
def store_errors(message: str, url: str) -> Generator[None]:
    """Convert the body's exceptions, which depend on the kind of store, to EngramError: `message (first line)`."""
    try:
        yield
    except EngramError:
        raise
    except Exception as problem:
        raise EngramError(f"{message} ({first_line(problem, url)})") from problem


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL or path, and the path in it; call inside `store_errors`."""
    files, root = url_to_fs(url)  # opens a chain of URLs
    return files, root.rstrip("/")


def check_url(name: str, url: str) -> None:
    """Raise ValueError unless every URL of a chain has a path and no password."""
    for link in url.split("::"):
        match = _LINK.fullmatch(link)
        last = link == url.rpartition("::")[2]
        password = match is not None and ":" in (match["user"] or "")
        if password or (last and (match is None or not (match["place"] or match["query"]))):
            raise ValueError(
                f"{name} is not of the form PROTOCOL://PLACE; passwords belong in the environment, not in the URL"
            )


def _redacted_link(link: str) -> str:
    match = _LINK.fullmatch(link)
    if match is None:
        return link
    user, query = match["user"], match["query"]
    if user and not (match["scheme"] in _NAMED_USERS and ":" not in user):
        user = SECRET
    return f"{match['scheme']}://{f'{user}@' if user else ''}{match['place']}{f'?{SECRET}' if query else ''}"
