"""URLs of stores: secret parts, form in files and messages, and file systems."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from fsspec.core import url_to_fs

from ...base.errors import EngramError

SECRET = "***"  # Placeholder for secrets
PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_TOKEN = re.compile(rf"(?<!sftp)(?<!ssh)://[^/@]*@|{PASSWORD.pattern}")  # Before @, sftp and ssh have a user name
_QUERY = re.compile(r"[?#].*?(?=::|$)", re.DOTALL)


def is_url(location: str) -> bool:
    """Whether `location` is a URL rather than a path."""
    return "://" in location


def redacted(url: str) -> str:
    """Remove tokens and signed queries from a URL, or from a chain of URLs (zip://x::https://host/y.zip)."""
    return _QUERY.sub(f"?{SECRET}", _TOKEN.sub(f"://{SECRET}@", url)) if is_url(url) else url


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
