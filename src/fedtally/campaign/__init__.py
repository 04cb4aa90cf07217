"""The parties and steps of a campaign; `transports` carries the bytes between the parties."""
