"""What a study would cost, without a job."""
