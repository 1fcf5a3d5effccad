"""The compiled route of ConvLSTM."""
