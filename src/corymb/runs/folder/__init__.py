"""A run's folder: TOML, JSON and safetensors, nothing that is run when it is read."""
