"""Stands in for an agent of Ray's whose services nobody uses: tells raylet that its ports are not in use, and waits.

    python agent_stand_in.py SESSION_FOLDER NODE NAME_OF_A_PORT ...

This file is run by path and imports the standard library alone, to cost next to nothing. It ends with raylet.
"""

import os
import sys
import time

NOT_IN_USE = "-1"
"""As Ray's own agents write it."""
LOOK_SECONDS = 1.0


def main(folder: str, node: str, ports: list[str]) -> None:
    """Write the ports where raylet looks for them, then wait for its end."""
    raylet = int(os.environ["RAY_RAYLET_PID"])  # its parent is another process if raylet has ended already
    for port in ports:
        path = f"{folder}/{port}_{node}"
        with open(f"{path}.new", "w") as file:
            file.write(NOT_IN_USE)
        os.replace(f"{path}.new", path)  # raylet may look at any moment
    while os.getppid() == raylet:
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
