"""Folders of the current user: the home directory if it is writable, else private temporary folders."""

import os
import stat
import tempfile
from pathlib import Path


def writable_home() -> Path | None:
    """Return the home directory; None if the user has no writable one, as in many containers."""
    home = Path(os.path.expanduser("~"))  # Path.home() raises for a user missing from /etc/passwd
    return home if home.is_absolute() and os.access(home, os.W_OK | os.X_OK) else None


def private_folder(name: str, parent: str | None = None) -> Path:
    """Return the folder `NAME-UID`, created if missing, which no other user can read or write, in `parent` or the
    folder for temporary files. Raises OSError, such as PermissionError if the name belongs to another user."""
    folder = Path(parent or tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    folder.chmod(0o700)
    return folder
