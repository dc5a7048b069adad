"""`mqstore report`: what is in a store, as one HTML page."""
