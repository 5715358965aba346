"""The loop that receives, handles and settles."""
