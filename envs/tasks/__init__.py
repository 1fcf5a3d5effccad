"""Supervised tasks that probe a memory: generated sequences with queries; without torch and Ray."""
