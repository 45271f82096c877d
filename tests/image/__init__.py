"""The image without a Docker engine: its files are parsed, and its own build steps run elsewhere."""
