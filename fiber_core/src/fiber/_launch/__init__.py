"""How jobs come to life: run directories, supervisors and the first code inside a job."""
