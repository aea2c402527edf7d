"""Shell integration."""
