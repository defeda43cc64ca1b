"""What all pages share: one look, a policy that lets nothing in from elsewhere, plots."""
