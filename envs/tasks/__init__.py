"""Supervised tasks that probe a memory: sequences with queries, generated or read from files; without torch and Ray."""
