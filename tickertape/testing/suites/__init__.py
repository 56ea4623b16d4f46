"""What `tickertape check` runs: the kit over a subject that is handed in as the fixture `checked`."""
