"""Where the posterior of a dataset is: modes and scales of a density of z."""
