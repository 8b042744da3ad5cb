"""Memory that processes share: mapped by those on the maker's host, read by messages elsewhere."""
