"""The dispatcher to the hosts of the devices, and what crosses to them."""
