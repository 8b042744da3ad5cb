"""What backends that watch a platform are made of: plugins take it from here, nobody has to."""
