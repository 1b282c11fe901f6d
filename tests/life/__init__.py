"""What happens around a trainer that lives for weeks."""
