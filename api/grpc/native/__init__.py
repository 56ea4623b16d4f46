"""`tickertape.v1.TokenStream`."""
