"""`rl-eval zoo:` lists the agents that come with engram."""

from rich.table import Table

from ... import zoo


def zoo_table() -> Table:
    """Every agent in a row: its world and core, its evaluation with the 95% interval, the steps it learnt from."""
    table = Table(title="agents that come with engram", title_justify="left")
    for column in ("name", "world", "core", "return", "steps"):
        table.add_column(column, no_wrap=column == "name")
    for name in zoo.names():
        found = zoo.facts(name)
        mean, low, high = (found["evaluation"]["return"][key] for key in ("mean", "low", "high"))
        world = zoo.environment(found)
        said = f"{mean:.3g} [{low:.3g}, {high:.3g}]"
        table.add_row(f"zoo:{name}", world, found["core"], said, f"{found['provenance']['steps'] / 1e6:,.1f} M")
    return table
