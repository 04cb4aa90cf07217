"""A campaign, whatever carries its bytes: contribute, sum, reserve, add noise, release."""
