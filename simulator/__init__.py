"""What happens: a placement and a schedule become a timeline."""
