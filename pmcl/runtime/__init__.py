"""How pmcl runs: devices, precision, compiled functions, progress, files, arguments."""
