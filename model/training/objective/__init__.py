"""What training makes small: targets, losses, and the reference policy of a fine-tune."""
