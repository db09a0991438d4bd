"""Shows the output of the ranks to the user."""
