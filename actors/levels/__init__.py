"""Which levels are played when: curricula, levels that are played again, episodes that do not begin together."""
