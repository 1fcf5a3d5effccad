"""Tests that take minutes run only when they are asked for by name: `pytest -m cluster`."""

import pytest

LONG = {
    "cluster": "makes hosts and a Ray cluster of them, minutes",
    "slow": "takes minutes",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, why in LONG.items():
        config.addinivalue_line("markers", f"{name}: {why}; skipped unless chosen with -m {name}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.option.markexpr
    for item in items:
        for name, why in LONG.items():
            if item.get_closest_marker(name) and name not in chosen:
                item.add_marker(pytest.mark.skip(reason=f"{why}; run it with: pytest -m {name}"))
