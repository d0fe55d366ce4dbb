"""Many machines: hands `torchmark run` to a cluster's own scheduler, and tells how every job stands."""
