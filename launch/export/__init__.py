"""`rl-export`: one step of a trained agent as an ONNX model or a program of torch.export."""
