"""Plans and runs: the records, their files and what is predicted from them."""
