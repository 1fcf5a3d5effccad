"""Supervised tasks that probe a memory: sequences with questions, generated or read from files; no torch, no ray."""
