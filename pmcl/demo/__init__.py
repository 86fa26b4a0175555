"""The main job on real data: the linear regression of the paper's first experiment."""
