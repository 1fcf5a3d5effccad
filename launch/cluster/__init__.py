"""Ray: a private one or a cluster, and the clean-up of its orphans."""
