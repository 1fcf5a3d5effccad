"""Foundation modules for all other folders; they import only numpy, numba, psutil and the standard library."""
