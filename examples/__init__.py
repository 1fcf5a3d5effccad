"""Single-file environments, cores and algorithms to copy and change, such as `engram.examples.masked_cartpole`."""
