"""Models of the user's own: their files, what is in them, and the workloads that they become."""
