"""Cores whose recurrence is linear in the state: state-space models, linear attention and fast weights."""
