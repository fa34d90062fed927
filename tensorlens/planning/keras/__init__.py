"""A train step of a Keras model without its data: shapes, policies, and models made anew.

Unlike their neighbours these modules run Keras's own code, where it is imported already.
"""
