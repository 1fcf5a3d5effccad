"""Environments and algorithms of one file each, to be copied and changed, such as `engram.examples.masked_cartpole`."""
