"""A virtual environment for a wheel of engram, with the packages of this one as if they had been downloaded."""

import subprocess
import sys
from pathlib import Path


def make_venv(place: Path) -> Path:
    """Make a virtual environment without pip and without engram; returns its `python`.

    The packages of this interpreter are visible in it, but not what its own .pth files add, such as an editable engram.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    library = next((place / "lib").glob("python*/site-packages"))
    seen = [path for path in sys.path if path.endswith("site-packages")]
    (library / "downloaded.pth").write_text("\n".join(seen) + "\n")
    return place / "bin" / "python"
