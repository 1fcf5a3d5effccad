"""Folders of this user: the home directory where it can be written, else private folders for temporary files."""

import os
import stat
import tempfile
from pathlib import Path


def writable_home() -> Path | None:
    """The home directory; None where the user has none that can be written, as in many containers."""
    home = Path(os.path.expanduser("~"))  # Path.home() raises where the user is not in /etc/passwd
    return home if home.is_absolute() and os.access(home, os.W_OK | os.X_OK) else None


def private_folder(name: str, parent: str | None = None) -> Path:
    """A folder `NAME-UID` that no other user can read or write; it is made if missing.

    Args:
        name: without the user's number.
        parent: where it is; the folder for temporary files if None.

    Raises:
        PermissionError: another user has a folder, or anything else is a file, of that name.
        OSError: it cannot be made.
    """
    folder = Path(parent or tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    folder.chmod(0o700)
    return folder


def cache_folder() -> Path:
    """Private folder for caches where the home directory cannot be written. Raises OSError."""
    return private_folder("engram-cache")
