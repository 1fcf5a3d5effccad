"""The ground floor: what every other folder may use. Standard library, numpy and numba; imports nothing of ours."""
