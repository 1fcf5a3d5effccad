"""Supervised tasks that probe memory: generated sequences with queries; they need neither torch nor Ray."""
