"""Source that programs import, made of what servers say of their tools; and finding tools by words. Pure."""
