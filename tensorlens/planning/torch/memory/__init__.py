"""Scratch memory of kernels, which no fake tensor shows.

The rules for CUDA are those of torch 2.13 (``aten/src/ATen/native/cuda``; each names its file).
"""
