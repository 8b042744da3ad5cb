"""What is waited for rather than read: locks, permits, events, conditions and barriers."""
