"""Foundation modules that every other folder may use; they import only the standard library, numpy and numba."""
