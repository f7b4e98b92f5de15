"""What travels: one codec for all binary messages, and the messages that all parties share."""
