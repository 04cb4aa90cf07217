"""What every deployment must do, whatever carries its bytes: contribute, sum, reserve, add noise, release."""
