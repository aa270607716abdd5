"""What a study is: its YAML file resolved, its methods, spaces and conditions."""
