"""What a program will need before it runs, which option helps, what the input queue holds."""
