class Platform:
    device_type = "cpu"


current_platform = Platform()
