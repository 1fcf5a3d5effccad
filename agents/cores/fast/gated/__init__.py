"""The compiled route of LSTM and GRU."""
