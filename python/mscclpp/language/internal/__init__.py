"""What the modules of the language share."""
