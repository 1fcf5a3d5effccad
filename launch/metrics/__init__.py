"""What a run reports: rows of metrics, TensorBoard, the panel in a terminal."""
