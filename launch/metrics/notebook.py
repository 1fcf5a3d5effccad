"""The panel of a run in a notebook: one output of the cell, drawn again in its place."""

import io
import sys
from typing import Any

from rich.console import Console, RenderableType

WIDTH = 100
_FORM = '<pre style="font-family: monospace; line-height: 1.2; white-space: pre">{code}</pre>'


class NotebookDisplay:
    """Methods of `rich.live.Live` that the panel calls.

    Live draws in notebooks through widgets, which are another package, and which a notebook on disk does not keep.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def start(self) -> None:
        """Nothing is shown before the first `update`."""

    def stop(self) -> None:
        """The last picture stays."""

    def update(self, renderable: RenderableType, *, refresh: bool = True) -> None:
        """Draw in place of what was there; `refresh` is Live's, here every update is one."""
        display: Any = sys.modules["IPython.display"]
        page = display.HTML(as_html(renderable))
        if self._handle is None:
            self._handle = display.display(page, display_id=True)
        else:
            self._handle.update(page)


def as_html(renderable: RenderableType) -> str:
    """A renderable as a piece of a page."""
    console = Console(
        record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, force_jupyter=False, color_system="truecolor"
    )
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=_FORM)
