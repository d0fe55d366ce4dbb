"""Hands `torchmark run` to a cluster's own scheduler, and reports the state of every job."""
