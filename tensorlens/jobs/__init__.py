"""The ranks of a distributed job beside each other, from one record of each."""
