"""Networks that others measured, written from their papers and as torchvision defines them."""
