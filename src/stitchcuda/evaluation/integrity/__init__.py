"""What cheating looks like: rules over what ran."""
