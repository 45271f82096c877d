"""What prepares a checkout or an image, and nothing that runs in one: environments, locks, models."""
