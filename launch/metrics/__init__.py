"""Reports of a run: rows of metrics, TensorBoard, and the panel in a terminal."""
