"""`rl-export`: one step of a trained agent as an ONNX model or an archive of torch.export."""
