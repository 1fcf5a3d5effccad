"""Named settings: the papers', easy ones to begin with, and curricula.

A preset is a dict of values that differ from the defaults, in the shape of RunConfig.
"""
