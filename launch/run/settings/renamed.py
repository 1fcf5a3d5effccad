"""Settings that older runs saved under another name."""

from typing import Any

RENAMED = {
    "optimiser": "optimizer",
    "normalise_advantages": "normalize_advantages",
    "normalise_features": "normalize_features",
    "normalise_observations": "normalize_observations",
    "normalise_returns": "normalize_returns",
    "summariser_size": "summarizer_size",
}


def renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run by today's names; parameters of the environment stay as they are."""
    return {
        RENAMED.get(key, key): renamed(value) if isinstance(value, dict) and key != "env_args" else value
        for key, value in settings.items()
    }
