"""A made sample in the format of bAbI: small stories that are nobody's but ours."""

from pathlib import Path

STORY = """1 Ada went to the shed.
2 Ben took the lamp.
3 Where is Ada?\tshed\t1
4 Ada went to the mill.
5 Where is Ada?\tmill\t4
"""
LIST = """1 Cid got the cup there.
2 Cid got the key.
3 What is Cid carrying?\tcup,key\t1 2
"""


def write_babi(folder: Path, stories: int = 3) -> None:
    """Files qa1_ .. qa20_ of the three parts, each of `stories` stories; those of task 8 have answers of two words."""
    folder.mkdir(parents=True)
    for task in range(1, 21):
        for part in ("train", "valid", "test"):
            (folder / f"qa{task}_made-up_{part}.txt").write_text((LIST if task == 8 else STORY) * stories)
