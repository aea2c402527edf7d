"""The folder of a run: TOML, JSON and safetensors files, whose reading never executes code."""
