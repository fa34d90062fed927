"""Line events: sources of them by Python version, threads, and the accounts they are added to."""
