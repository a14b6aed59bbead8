"""`sepgconv bench`: what equivariance costs, measured against the plain CNN of the same run."""
