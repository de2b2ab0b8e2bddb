"""What a person reads on an asset's page."""
