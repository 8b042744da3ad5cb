"""Objects of managers: calls of their methods, in their own process and from others."""
