"""What every package uses: errors and checks of arguments, documents that somebody hands over, promises and signals."""
