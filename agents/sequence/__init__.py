"""Forms of a core's unroll other than step by step: chunks, scans, compiled steps."""
