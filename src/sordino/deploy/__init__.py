"""The first real federation: certificates, node keys, invitations and commands for a set-up, and a check of it."""
