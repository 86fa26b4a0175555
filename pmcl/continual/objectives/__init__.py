"""What adaptation minimises for one unlabeled dataset."""
