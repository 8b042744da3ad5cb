"""Builds the image that a folder describes and brings it to where the cluster pulls it from."""
