"""Plug-ins for other packages, one module each. ``import bucketq`` loads none of them."""
