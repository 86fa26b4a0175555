"""Many datasets part by part, in this process or on a cluster."""
