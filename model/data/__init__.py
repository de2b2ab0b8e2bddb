"""Convert batches of packed rows to network inputs."""
