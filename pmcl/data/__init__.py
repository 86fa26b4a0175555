"""Tasks as labelled xarray, and the one place where labels become padded arrays and masks."""
