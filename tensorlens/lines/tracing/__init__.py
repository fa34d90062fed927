"""Line events by Python version, the threads they come from, and the accounts they fill."""
