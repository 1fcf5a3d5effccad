"""Ray: a private one or a cluster, and the cleanup of its orphans."""
