"""Networks that others measured, written from their papers and torchvision's definitions of them."""
