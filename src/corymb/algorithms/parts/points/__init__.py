"""What algorithms share that give a cluster to every example, not to every client."""
