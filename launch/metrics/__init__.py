"""Reports of a run: rows of metrics, TensorBoard, the panel in a terminal."""
