"""How a group convolution is computed: a plan orders contractions, a way takes one. Private to the layers."""
