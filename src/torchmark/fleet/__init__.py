"""Hands `torchmark run` to a cluster's scheduler, and reports the state of every job."""
